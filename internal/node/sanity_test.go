package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestCSISanity runs the Identity and Node parts of csi-sanity over the real socket. They create
// volumes with CSI calls. The test turns these into PersistentVolumes, as Tarn's controllers do
// without CSI.
func TestCSISanity(t *testing.T) {
	w := newWorldAlone(t)
	w.start()
	provisioner := w.provisioner()
	w.player.mu.Lock()
	w.player.grows = true
	w.player.mu.Unlock()
	w.letGrow(provisioner)
	controller := filepath.Join(w.kubelet, "controller.sock")
	listener, err := net.Listen("unix", controller)
	w.must(err)
	server := grpc.NewServer()
	maker := &volumeMaker{w: w, provisioner: provisioner}
	csi.RegisterControllerServer(server, maker)
	csi.RegisterIdentityServer(server, maker)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	config := sanity.NewTestConfig()
	config.Address = "unix://" + filepath.Join(w.state, "drivers", provisioner, "csi.sock")
	config.ControllerAddress = "unix://" + controller
	config.TargetPath = filepath.Join(w.kubelet, "sanity-target")
	config.StagingPath = filepath.Join(w.kubelet, "sanity-staging")
	config.DialOptions = []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithUnaryInterceptor(claimController),
	}
	suite := sanity.GinkgoTest(&config)
	defer suite.Finalize()
	gomega.RegisterFailHandler(ginkgo.Fail)
	choice, report := ginkgo.GinkgoConfiguration()
	choice.FocusStrings, choice.FailOnEmpty = []string{"Identity Service", "Node Service"}, true
	ginkgo.ReportAfterSuite("every spec has run that is about what is served", func(all ginkgo.Report) {
		for i := range all.SpecReports {
			if problem := leftOut(&all.SpecReports[i], choice.FocusStrings); problem != "" {
				t.Error(problem)
			}
		}
	})
	if !ginkgo.RunSpecs(t, "CSI sanity", choice, report) {
		t.Error("csi-sanity has failed")
	}
	w.nothingIsLeft()
}

// unserved are the calls and options that the driver does not offer, by csi-sanity's names in specs
// about them.
var unserved = map[string]string{
	"NodeStageVolume":                          "what pods share on a node is a PavStage, which outlives agent and kubelet",
	"NodeUnstageVolume":                        "as NodeStageVolume",
	"with single node multi writer capability": "ReadWriteOncePod is held to by the scheduler and the kubelet",
	"NodeGetVolumeHealth":                      "condition Healthy of the PavStage tells it",
	"NodeGetStorageHealth":                     "Tarn knows of no storage but the volumes",
}

// leftOut says why a spec was chosen and has not run; empty if all is well.
func leftOut(spec *ginkgo.SpecReport, chosen []string) string {
	chose := func(focus string) bool { return strings.Contains(spec.FullText(), focus) }
	about := func(part string) bool { return unserved[part] != "" }
	if !spec.State.Is(types.SpecStateSkipped|types.SpecStatePending) || !slices.ContainsFunc(chosen, chose) || slices.ContainsFunc(spec.ContainerHierarchyTexts, about) {
		return ""
	}
	return fmt.Sprintf("csi-sanity has left out %q: %s", spec.FullText(), spec.Failure.Message)
}

// claimController makes csi-sanity believe that the driver has a controller service. Without one it
// does not test a volume's whole life.
func claimController(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, request, reply, conn, opts...)
	if answer, ok := reply.(*csi.GetPluginCapabilitiesResponse); ok && err == nil {
		answer.Capabilities = append(answer.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
		}})
	}
	return err
}

// volumeMaker turns CSI calls into PersistentVolumes.
type volumeMaker struct {
	csi.UnimplementedControllerServer
	csi.UnimplementedIdentityServer

	w           *world
	provisioner string
}

func (m *volumeMaker) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: m.provisioner, VendorVersion: "test"}, nil
}

func (m *volumeMaker) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (m *volumeMaker) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (m *volumeMaker) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{
		Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{
			Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		}},
	}}}, nil
}

func (m *volumeMaker) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	volume := m.w.volume(m.provisioner, "pv-"+m.w.id+"-"+shorten(r.GetName()))
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: volume.Spec.CSI.VolumeHandle, CapacityBytes: 1 << 20}}, nil
}

func (m *volumeMaker) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	name := r.GetVolumeId()[len("handle-of-"):]
	err := m.w.client.Delete(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}})
	return &csi.DeleteVolumeResponse{}, client.IgnoreNotFound(err)
}

// shorten makes a valid name of an object.
func shorten(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}
