package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"tarn.dev/tarn/cluster/internal/component"
	"tarn.dev/tarn/cluster/internal/host"
	"tarn.dev/tarn/cluster/internal/image"
	"tarn.dev/tarn/cluster/internal/layout"
	"tarn.dev/tarn/cluster/internal/proc"
)

// stageLimit is how long each stage of a start may take before it fails. It is kubeadm's limit for
// its control plane, and fifty times the usual time: several clusters may start at once on a slow
// machine. A component that keeps ending is reported earlier.
const stageLimit = 4 * time.Minute

// bringUp starts everything. It fails early if a component keeps ending.
func (s *Supervisor) bringUp(ctx context.Context) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	s.giveUp = giveUp
	err := s.startAll(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause // else a stage says only that it was cut off
	}
	return err
}

// startAll starts everything in order. The node's runtime starts beside the control plane, and Tarn
// beside the node.
func (s *Supervisor) startAll(ctx context.Context) error {
	options := s.config.State.Options
	if s.config.furtherNode() {
		return s.startFurther(ctx)
	}
	if options.HasNode() {
		ns, err := host.NewNodeNetwork(s.config.Layout, layout.NetOf(s.config.State.Block))
		if err != nil {
			return err
		}
		s.launcher.netns = ns
	}
	if err := issueAll(s.config.Layout, s.config.State, time.Now()); err != nil {
		return err
	}
	both, ctx2 := errgroup.WithContext(ctx)
	both.Go(func() error { return s.controlPlane(ctx2) })
	if options.HasNode() {
		both.Go(func() error { return s.runtime(ctx2) })
	}
	if err := both.Wait(); err != nil {
		return err
	}
	rest, ctx3 := errgroup.WithContext(ctx)
	if options.HasNode() {
		rest.Go(func() error { return s.node(ctx3) })
	} else if options.HasControllers() {
		rest.Go(func() error { return s.untilAccount(ctx3, stageLimit, metav1.NamespaceDefault, "default") })
	}
	for _, f := range s.further() {
		rest.Go(func() error { return s.boot(ctx3, f) })
	}
	if options.HasTarn() {
		rest.Go(func() error { return s.tarn(ctx3) })
	}
	if err := rest.Wait(); err != nil {
		return err
	}
	s.progress.ready(fmt.Sprintf("cluster %s is ready", s.config.Layout.Name))
	return nil
}

func (s *Supervisor) controlPlane(ctx context.Context) error {
	if err := errors.Join(s.run(s.plan.Etcd()), s.run(s.plan.APIServer())); err != nil {
		return err
	}
	if err := s.until(ctx, stageLimit, component.APIServer, s.apiReady()); err != nil {
		return err
	}
	s.progress.step("API server responds at " + s.config.State.Server())
	if !s.config.State.Options.HasControllers() {
		return nil
	}
	if err := s.run(s.plan.ControllerManager()); err != nil || !s.config.State.Options.HasNode() {
		return err
	}
	return s.run(s.plan.Scheduler())
}

// runtime starts containerd and imports the images.
func (s *Supervisor) runtime(ctx context.Context) error {
	mirror, err := s.mirror()
	if err != nil {
		return fmt.Errorf("listening for the runtime's image requests: %w", err)
	}
	if !s.config.furtherNode() {
		proxy, err := net.Listen("tcp", s.plan.PullProxy())
		if err != nil {
			return fmt.Errorf("listening for the runtimes' proxy requests: %w", err)
		}
		go servePullProxy(proxy, layout.NetOf(s.config.State.Block).Cables)
	}
	go image.ServeMirror(mirror, s.config.Layout.ContainerdSocket(), s.config.Layout.ContainerdRoot())
	if s.config.furtherNode() {
		if err := host.MakeCgroups(s.config.Layout.NodesCgroup()); err != nil {
			return err
		}
	}
	if err := host.MakeCgroups(s.config.Layout.CgroupName()); err != nil {
		return err
	}
	if err := s.run(s.plan.Containerd()); err != nil {
		return err
	}
	if err := s.until(ctx, stageLimit, component.Containerd, s.runtimeReady); err != nil {
		return err
	}
	s.progress.step("containerd responds")
	if s.config.Images == "" {
		return nil
	}
	if err := s.importImages(ctx, s.config.Images); err != nil {
		return err
	}
	s.progress.step("images imported")
	return nil
}

// mirror listens on the node's own network.
func (s *Supervisor) mirror() (l net.Listener, err error) {
	if s.launcher.netns == nil { // a further node's supervisor is on that network already
		return net.Listen("tcp", component.MirrorAddress)
	}
	err = proc.InNetNS(s.launcher.netns, func() (err error) {
		l, err = net.Listen("tcp", component.MirrorAddress)
		return err
	})
	return l, err
}

func (s *Supervisor) importImages(ctx context.Context, archive string) error {
	return s.runOnce(ctx, component.Component{
		Name: "image-import", Program: s.config.Machine.Programs + "/ctr",
		Args: image.ImportArgs(s.config.Layout.ContainerdSocket(), archive),
	})
}

func (s *Supervisor) node(ctx context.Context) error {
	if s.config.Machine.PacketFilter == "" {
		s.absent(component.Proxy, "neither nft nor iptables works on this machine, so Services have no addresses: install nftables")
	} else if err := s.run(s.plan.Proxy()); err != nil {
		return err
	}
	if !s.config.furtherNode() {
		if err := s.nodeRights(ctx); err != nil {
			return err
		}
	}
	if err := s.run(s.plan.Kubelet()); err != nil {
		return err
	}
	if err := s.untilNodeReady(ctx, stageLimit); err != nil {
		return err
	}
	s.progress.step("node " + s.config.Layout.NodeName() + " is Ready")
	if len(s.further()) == 0 {
		return nil
	}
	return s.labelZone(ctx)
}

func (s *Supervisor) tarn(ctx context.Context) error {
	if err := s.runOnce(ctx, s.plan.TarnInstall(stageLimit)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stageLimit)
	defer cancel()
	if s.config.State.Options.HasNode() {
		if err := s.classes(ctx); err != nil {
			return err
		}
	}
	s.progress.step("Tarn's resources are installed")
	expected := s.expected()
	for _, c := range []struct {
		component component.Component
		port      string
	}{
		{s.plan.TarnController(), layout.PortControllerHealth},
		{s.plan.TarnStandby(), layout.PortStandbyHealth},
		{s.plan.TarnNode(), layout.PortNodeHealth},
		{s.plan.TarnAPI(), layout.PortTarnAPIHealth},
	} {
		if !slices.Contains(expected, c.component.Name) {
			continue
		}
		if c.component.Name != component.TarnStandby { // which is whom the first is
			if err := s.token(ctx, c.component.Name); err != nil {
				return err
			}
		}
		if err := s.tarnPart(ctx, c.component, c.port); err != nil {
			return err
		}
	}
	if s.config.TarnImages == "" {
		return nil
	}
	return s.importImages(ctx, s.config.TarnImages) // while the node gets ready: no pod needs it before it was told of volumes
}

// tarnPart starts a part of Tarn that has its token, and waits until it is ready.
func (s *Supervisor) tarnPart(ctx context.Context, c component.Component, port string) error {
	if err := s.run(c); err != nil {
		return err
	}
	if err := s.until(ctx, stageLimit, c.Name, httpReady(s.config.State.Ports[port])); err != nil {
		return err
	}
	s.progress.step(c.Name + " is ready")
	return nil
}

// startFurther starts everything on a further node.
func (s *Supervisor) startFurther(ctx context.Context) error {
	if err := s.runtime(ctx); err != nil {
		return err
	}
	both, ctx2 := errgroup.WithContext(ctx)
	both.Go(func() error { return s.node(ctx2) })
	if s.config.State.Options.HasTarn() {
		both.Go(func() error { return s.tarnOnNode(ctx2) })
	}
	if err := both.Wait(); err != nil {
		return err
	}
	s.progress.ready("node " + s.config.Layout.NodeName() + " is ready")
	return nil
}

// tarnOnNode starts the node agent of a further node. It waits for the cluster's supervisor to
// install Tarn.
func (s *Supervisor) tarnOnNode(ctx context.Context) error {
	if err := s.untilAccount(ctx, stageLimit, "tarn-system", component.TarnNode); err != nil {
		return err
	}
	if err := s.token(ctx, component.TarnNode); err != nil {
		return err
	}
	if err := s.tarnPart(ctx, s.plan.TarnNode(), layout.PortNodeHealth); err != nil || s.config.TarnImages == "" {
		return err
	}
	return s.importImages(ctx, s.config.TarnImages)
}
