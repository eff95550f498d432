package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/plugin/hostpath"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// wholeView returns a cluster in which one volume is staged and nothing is orphaned.
func wholeView(changes ...func(*auditView)) *auditView {
	v := &auditView{
		provisioners: map[string]bool{}, nodes: map[string]bool{}, recordNames: map[string]bool{},
		records: map[types.UID]*tarnv1.PavVolume{}, stages: map[types.UID]*tarnv1.PavStage{},
		pods: map[types.UID]*corev1.Pod{}, volumes: map[string]*corev1.PersistentVolume{},
	}
	record := testkit.Record(testkit.Claim("team", "data", "1", "shelf"), "shelf", tarnv1.VolumeCreated)
	record.Status.Conditions = []metav1.Condition{{Type: tarnv1.ConditionProvisioned, Status: metav1.ConditionTrue}}
	vol := testkit.Volume(record)
	vol.Annotations = map[string]string{annProvisionedBy: "shelf"}
	stage := &tarnv1.PavStage{ObjectMeta: metav1.ObjectMeta{Name: "stage-a", UID: "stage-uid"}, Spec: tarnv1.PavStageSpec{
		Provisioner: record.Spec.Provisioner, VolumeName: vol.Name, VolumeUID: vol.UID, NodeName: "node-1",
	}}
	stage.Status.Node.Targets = []string{"/kubelet/pods/p/volumes/kubernetes.io~csi/pvc-1/mount"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pav-staging", UID: "pod-uid", Labels: map[string]string{
		tarnv1.LabelProvisioner: "shelf", tarnv1.LabelStep: "staging", tarnv1.LabelVolume: vol.Name, tarnv1.LabelStage: "stage-uid",
	}}}
	v.take(&pavv1.PavProvisioner{ObjectMeta: metav1.ObjectMeta{Name: "shelf"}})
	v.take(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}})
	v.take(record)
	v.take(vol)
	v.take(stage)
	v.take(pod)
	v.folders = []nodeFolder{
		{"/state/stages/stage-uid", ofStage, "stage-uid", ""}, {"/state/results/key", ofPod, "pod-uid", "default/pav-creation-1"},
		{"/state/drivers/shelf", ofDriver, "shelf", ""}, {"/state/drivers/pav.tarn.dev", ofDriver, "pav.tarn.dev", ""},
	}
	v.mounts = []nodeMount{
		{point: "/kubelet/pods/p/volumes/kubernetes.io~csi/pvc-1/mount", volume: "pvc-1"},
		{point: "/kubelet/pods/q/volumes/kubernetes.io~csi/foreign/mount", volume: "foreign"},
		{point: "/state/stages/stage-uid/pav/volume", stage: "stage-uid", ours: true},
		{point: "/kubelet/pods/r/volumes/kubernetes.io~csi/pav/mount", pod: "pod-uid", volume: "pav", ours: true},
	}
	for _, change := range changes {
		change(v)
	}
	return v
}

// scrubs returns a pod of Tarn's that scrubs a volume.
func scrubs(volume types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tarn-system", Name: "scrub-a", UID: "scrub-uid", Labels: map[string]string{
		tarnv1.LabelStep: string(tarnv1.StepScrubbing), tarnv1.LabelScrub: string(volume),
	}}}
}

func TestNothingIsOrphanedWhileBothSidesOfEverythingAreThere(t *testing.T) {
	items, orphaned := wholeView().judge("")
	if orphaned {
		t.Errorf("orphaned: %+v", items)
	}
	var kinds []string
	for _, i := range items {
		kinds = append(kinds, i.Kind)
		if i.Provisioner != "shelf" && i.Name != "/state/drivers/pav.tarn.dev" {
			t.Errorf("%s %s is of provisioner %q", i.Kind, i.Name, i.Provisioner)
		}
	}
	want := []string{"Folder", "Folder", "PavVolume", "PersistentVolume", "PavStage", "Pod", "Folder", "Folder", "Mount", "Mount", "Mount"}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	if others, _ := wholeView().judge("other"); len(others) != 0 {
		t.Errorf("another provisioner has %+v", others)
	}
}

func TestWhatLostItsOtherSideIsOrphaned(t *testing.T) {
	now := ptr.To(metav1.Now())
	gone := func(v *auditView) { delete(v.stages, "stage-uid") }
	for name, c := range map[string]struct {
		change func(*auditView)
		want   []string // kind and a part of why
	}{
		"record without volume": {func(v *auditView) { delete(v.volumes, "pvc-1") }, []string{"PavVolume: destroys it", "PavStage: PersistentVolume is gone"}},
		"record that is deleted without volume": {func(v *auditView) {
			delete(v.volumes, "pvc-1")
			v.records["record-1"].DeletionTimestamp = now
			gone(v)
			v.pods, v.folders, v.mounts = nil, nil, nil
		}, nil},
		"record that is not handed over": {func(v *auditView) {
			delete(v.volumes, "pvc-1")
			v.records["record-1"].Status.Conditions = nil
			gone(v)
			v.pods, v.folders, v.mounts = nil, nil, nil
		}, nil},
		"volume without record":                {func(v *auditView) { v.recordNames = nil; v.records = nil }, []string{"PersistentVolume: handle handle"}},
		"volume without record, on its way":    {func(v *auditView) { v.recordNames = nil; v.records = nil; v.volumes["pvc-1"].DeletionTimestamp = now }, nil},
		"volume made by hand":                  {func(v *auditView) { v.recordNames = nil; v.records = nil; v.volumes["pvc-1"].Annotations = nil }, nil},
		"volume of another driver":             {func(v *auditView) { v.volumes["pvc-1"].Spec.CSI.Driver = "other"; v.recordNames = nil; v.records = nil }, nil},
		"stage of a lost node":                 {func(v *auditView) { v.nodes = nil }, []string{"PavStage: its node is gone"}},
		"stage of another volume of the name":  {func(v *auditView) { v.volumes["pvc-1"].UID = "another" }, []string{"PavStage: PersistentVolume is gone"}},
		"stage that ends without volume":       {func(v *auditView) { v.volumes["pvc-1"].UID = "another"; v.stages["stage-uid"].DeletionTimestamp = now }, nil},
		"pod, folder and mounts without stage": {gone, []string{"Folder: PavStage", "Mount: PavStage", "Mount: no PavStage has this target", "Pod: kubectl delete pod -n default pav-staging"}},
		"pod that ends without stage":          {func(v *auditView) { gone(v); v.pods["pod-uid"].DeletionTimestamp = now; v.folders, v.mounts = nil, nil }, nil},
		"scrub pod of a volume":                {func(v *auditView) { v.take(scrubs(v.volumes["pvc-1"].UID)) }, nil},
		"scrub pod without volume":             {func(v *auditView) { v.take(scrubs("another")) }, []string{"Pod: kubectl delete pod -n tarn-system scrub-a"}},
		"folder and mount without pod":         {func(v *auditView) { v.pods = nil }, []string{"Folder: the pod", "Mount: the pod"}},
		"driver without provisioner": {func(v *auditView) {
			v.provisioners = nil
			v.stages = nil
			v.pods = nil
			v.mounts = nil
			v.folders = v.folders[2:]
		}, []string{"Folder: no PavProvisioner shelf"}},
		"driver that a stage still needs":         {func(v *auditView) { v.provisioners = nil }, nil},
		"folder the node agent knows nothing of":  {func(v *auditView) { v.folders = append(v.folders, nodeFolder{path: "/state/what"}) }, []string{"Folder: does not make such a directory"}},
		"mount in the folder that has no meaning": {func(v *auditView) { v.mounts = append(v.mounts, nodeMount{point: "/state/x", ours: true}) }, []string{"Mount: belongs to nothing"}},
	} {
		t.Run(name, func(t *testing.T) {
			items, orphaned := wholeView(c.change).judge("")
			left := append([]string(nil), c.want...)
			for _, i := range items {
				if i.Orphaned == "" {
					continue
				}
				at := -1
				for n, want := range left {
					kind, why, _ := strings.Cut(want, ": ")
					if kind == i.Kind && strings.Contains(i.Orphaned, why) {
						at = n
					}
				}
				if at < 0 {
					t.Errorf("%s %s is orphaned: %s", i.Kind, i.Name, i.Orphaned)
					continue
				}
				left = append(left[:at], left[at+1:]...)
			}
			if len(left) > 0 || orphaned != (len(c.want) > 0) {
				t.Errorf("not orphaned: %q; any: %t", left, orphaned)
			}
		})
	}
}

func TestAnOrphanOfNobodyKnowsWhomIsShownForEachProvisioner(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*auditView)
		want   []string // name and a part of why
	}{
		"another's orphan": {func(v *auditView) { delete(v.volumes, "pvc-1") }, nil},
		"another's driver": {func(v *auditView) {
			v.provisioners, v.stages, v.pods, v.mounts, v.folders = nil, nil, nil, nil, v.folders[2:]
		}, nil},
		"folder and mounts of a stage that is gone": {func(v *auditView) { delete(v.stages, "stage-uid") },
			[]string{"/state/stages/stage-uid: the PavStage", "/state/stages/stage-uid/pav/volume: the PavStage"}},
		"folder and mount of a pod that is gone": {func(v *auditView) { v.pods = nil },
			[]string{"/kubelet/pods/r/volumes/kubernetes.io~csi/pav/mount: the pod", "/state/results/key: the pod it was made for, default/pav-creation-1 (uid pod-uid), is gone"}},
		"folder of a pod, its record gone too": {func(v *auditView) {
			v.folders = []nodeFolder{{path: "/state/results/bad", of: ofPod}}
		}, []string{"/state/results/bad: the pod it was made for is gone"}},
		"folder and mount that are nothing": {func(v *auditView) {
			v.folders = append(v.folders, nodeFolder{path: "/state/what"})
			v.mounts = append(v.mounts, nodeMount{point: "/state/x", ours: true})
		}, []string{"/state/what: does not make such a directory", "/state/x: belongs to nothing"}},
	} {
		t.Run(name, func(t *testing.T) {
			items, orphaned := wholeView(c.change).judge("other")
			matches := len(items) == len(c.want) && orphaned == (len(c.want) > 0)
			slices.SortFunc(items, func(a, b auditItem) int { return strings.Compare(a.Name, b.Name) })
			for i := 0; matches && i < len(items); i++ {
				point, why, _ := strings.Cut(c.want[i], ": ")
				matches = items[i].Name == point && strings.Contains(items[i].Orphaned, why)
			}
			if !matches {
				t.Errorf("got %+v, orphaned: %t; want %q", items, orphaned, c.want)
			}
		})
	}
}

func TestTheNodeSideIsReadFromFoldersAndMounts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pav.tarn.dev")
	for path, text := range map[string]string{
		"stages/uid-1/record.json": "{}", "results/abc/record.json": `{"namespace": "team", "pod": "creation", "uid": "pod-1"}`, "results/bad/record.json": "no JSON",
		"drivers/short/name": "a-long-name\n", "drivers/plain/csi.sock": "", "strange/x": "",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	table := writeFile(t, "mountinfo", strings.Join([]string{
		`22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw`,
		`23 22 8:1 /k/plugins/pav.tarn.dev/stages/uid-1/pav/volume /k/pods/p/volumes/kubernetes.io~csi/pv-1/mount rw - ext4 /dev/sda1 rw`,
		`24 22 0:50 / /k/pods/q/volumes/kubernetes.io~csi/pv-2/mount rw - fuse.x x rw`,
		`25 22 8:1 /k/plugins/pav.tarn.dev/results/abc/pav /k/pods/r/volumes/kubernetes.io~csi/pav/mount rw - ext4 /dev/sda1 rw`,
		`26 22 0:51 / ` + dir + `/stages/uid-1/pav/volume rw - fuse.x x rw`,
		`27 22 0:5 /loop0 /k/plugins/kubernetes.io/csi/volumeDevices/publish/pv-3/pod-uid rw - devtmpfs udev rw`,
		`28 22 0:52 / /k/pods/s/volumes/kubernetes.io~secret/token rw - tmpfs tmpfs rw`,
	}, "\n")+"\n")
	n, err := newNodeSide(dir, table)
	if err != nil {
		t.Fatal(err)
	}
	folders, mounts, err := n.read()
	if err != nil {
		t.Fatal(err)
	}
	allowed := cmp.AllowUnexported(nodeFolder{}, nodeMount{})
	if diff := cmp.Diff([]nodeFolder{
		{dir + "/drivers/plain", ofDriver, "plain", ""}, {dir + "/drivers/short", ofDriver, "a-long-name", ""},
		{dir + "/results/abc", ofPod, "pod-1", "team/creation"}, {dir + "/results/bad", ofPod, "", ""},
		{dir + "/stages/uid-1", ofStage, "uid-1", ""}, {path: dir + "/strange"},
	}, folders, allowed); diff != "" {
		t.Errorf("folders: want -, got +:\n%s", diff)
	}
	if diff := cmp.Diff([]nodeMount{
		{point: "/k/pods/p/volumes/kubernetes.io~csi/pv-1/mount", stage: "uid-1", volume: "pv-1"},
		{point: "/k/pods/q/volumes/kubernetes.io~csi/pv-2/mount", volume: "pv-2"},
		{point: "/k/pods/r/volumes/kubernetes.io~csi/pav/mount", pod: "pod-1", volume: "pav", ours: true},
		{point: dir + "/stages/uid-1/pav/volume", stage: "uid-1", ours: true},
		{point: "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv-3/pod-uid", volume: "pv-3"},
	}, mounts, allowed); diff != "" {
		t.Errorf("mounts: want -, got +:\n%s", diff)
	}
}

func TestAFolderInAProcessViewIsSeenAsThatProcessSeesIt(t *testing.T) {
	self := filepath.Join("/proc", "1", "root", "tmp")
	if _, err := os.ReadDir(self); err != nil {
		t.Skipf("this user may not look into the first process: %v", err)
	}
	if n, err := newNodeSide(self, ""); err != nil || n.inside != "/tmp" || n.mountinfo != "/proc/1/mountinfo" {
		t.Errorf("got %+v, %v", n, err)
	}
}

func TestAuditSaysWhyTheNodeSideIsLeftOut(t *testing.T) {
	for dir, want := range map[string]string{"none": "because of --node-state-dir", "": "this machine has no"} {
		if _, err := os.Stat(tarnv1.DefaultStateDir); dir == "" && err == nil {
			continue // this machine is a node
		}
		a := &audit{stateDir: dir}
		if said, err := a.findNode(); err != nil || a.node != nil || !strings.Contains(said, want) {
			t.Errorf("%q: %q, %v; want %q", dir, said, err, want)
		}
	}
	a := &audit{stateDir: "/nonexistent/folder"}
	if _, err := a.findNode(); err == nil || !strings.Contains(err.Error(), "--node-state-dir") {
		t.Errorf("a folder that is asked for and not there: %v", err)
	}
}

// folderVolume returns a volume of tarn.dev/host-path in the root directory /root.
func folderVolume(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{volume.AnnProvisionedBy: hostpath.Provisioner}},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			Local: &corev1.LocalVolumeSource{Path: filepath.Join("/root", name)},
		}},
	}
}

func TestAuditKnowsWhoseAFolderIs(t *testing.T) {
	for _, c := range []struct {
		name, folder, volume, claim string
		wantState, wantOrphaned     string
	}{
		{"a volume's", "pvc-1", "pvc-1", "", "", ""},
		{"a volume's of another name", "spare", "spare", "", "", ""},
		{"one that is being deleted", ".deleting-pvc-1", "pvc-1", "", "being deleted", ""},
		{"one in the making", "pvc-7", "", "7", "being created or removed", ""},
		{"one being undone", ".deleting-pvc-7", "", "7", "being created or removed", ""},
		{"nobody's", "pvc-7", "pvc-8", "8", "", "by hand"},
		{"nobody's, of the name of another provisioner's volume", "pvc-1", "", "", "", "by hand"},
		{"nobody's, half deleted", ".deleting-pvc-7", "", "", "", "by hand"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := wholeView()
			v.hostPath = &hostPathView{root: "/root", folders: []string{c.folder}, claims: map[types.UID]bool{types.UID(c.claim): true}}
			if c.volume != "" {
				v.take(folderVolume(c.volume))
			}
			items, _ := v.judge(hostpath.Provisioner)
			for _, i := range items {
				if i.Kind == "Folder" {
					if i.Name != "/root/"+c.folder || i.State != c.wantState || (i.Orphaned == "") != (c.wantOrphaned == "") || !strings.Contains(i.Orphaned, c.wantOrphaned) {
						t.Errorf("got %+v", i)
					}
					return
				}
			}
			t.Errorf("no folder among %+v", items)
		})
	}
}

func TestAuditMissesTheFolderOfAVolume(t *testing.T) {
	going := func(vol *corev1.PersistentVolume) { vol.DeletionTimestamp = &metav1.Time{} }
	elsewhere := func(vol *corev1.PersistentVolume) { vol.Spec.Local.Path = "/other/pvc-1" }
	for _, c := range []struct {
		name         string
		change       testkit.With[*corev1.PersistentVolume]
		wantOrphaned bool
	}{
		{"that should be there", func(*corev1.PersistentVolume) {}, true},
		{"but not of one that is being deleted", going, false},
		{"but not of one in another root", elsewhere, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := wholeView()
			v.hostPath = &hostPathView{root: "/root"}
			vol := folderVolume("pvc-1")
			c.change(vol)
			v.take(vol)
			items, orphaned := v.judge(hostpath.Provisioner)
			if len(items) != 1 || orphaned != c.wantOrphaned {
				t.Errorf("got %+v, orphaned %t, want %t", items, orphaned, c.wantOrphaned)
			}
		})
	}
}

func TestAuditTakesTheMarkerOfARootForNoVolume(t *testing.T) {
	a := &audit{client: fake.NewClientBuilder().WithScheme(kube.Scheme()).Build(), hostPathRoot: filepath.Join(t.TempDir(), "root")}
	if _, err := hostpath.New(a.hostPathRoot, "node-1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(a.hostPathRoot, ".deleting-pvc-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if v, err := a.gatherHostPath(t.Context()); err != nil || len(v.folders) != 1 || v.folders[0] != ".deleting-pvc-1" {
		t.Errorf("got %+v, %v, want the one volume", v, err)
	}
}

func TestAuditWantsARootThatIsThere(t *testing.T) {
	a := &audit{hostPathRoot: filepath.Join(t.TempDir(), "missing")}
	if _, err := a.gatherHostPath(t.Context()); err == nil || !strings.Contains(err.Error(), "--host-path-root") {
		t.Errorf("got %v, want an error that names the flag", err)
	}
	if err := os.Mkdir(a.hostPathRoot, 0o700); err != nil {
		t.Fatal(err)
	}
	a.hostPathRoot = ""
	if v, err := a.gatherHostPath(t.Context()); v != nil || err != nil {
		t.Errorf("without the flag got %+v, %v, want nothing looked at", v, err)
	}
}

func TestAClaimThatWasMadeForAVolumeIsOrphanedWithoutItsRecord(t *testing.T) {
	claim := testkit.Claim(tarnv1.StepNamespace, "pvc-1-backing", "claim-uid", "disk", func(c *corev1.PersistentVolumeClaim) {
		c.Labels = map[string]string{tarnv1.LabelVolume: "pvc-1", tarnv1.LabelProvisioner: "shelf", tarnv1.LabelRecord: "record-1"}
	})
	if items, orphaned := wholeView(func(v *auditView) { v.take(claim) }).judge("shelf"); orphaned || !slices.ContainsFunc(items, func(i auditItem) bool { return i.Name == claim.Name }) {
		t.Errorf("with its record, the items are %+v", items)
	}
	items, _ := wholeView(func(v *auditView) { v.take(claim); delete(v.records, "record-1") }).judge("shelf")
	i := slices.IndexFunc(items, func(i auditItem) bool { return i.Name == claim.Name })
	if i < 0 || !strings.Contains(items[i].Orphaned, "kubectl label pvc -n tarn-volumes pvc-1-backing tarn.dev/deletion-protection-") {
		t.Errorf("without its record, the items are %+v, want the claim orphaned with how to delete it", items)
	}
}
