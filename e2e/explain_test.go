//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarn "tarn.dev/tarn/api/v1alpha1"
)

// The cases of explain_*_test.go create the states that `tarn explain` describes, and run its
// commands. They hold states that would pass within moments. Either a policy of the case rejects
// the next write (refuses), or the writing controller is stopped, in a cluster of its own. The
// times in the answer are compared with those of the objects (since).

// explanation is what tarn explain prints as JSON.
type explanation struct {
	Healthy bool
	Verdict string
	Links   []link
}

// link is one link of an explanation.
type link struct {
	Object                                      struct{ Kind, Namespace, Name string }
	State, Node, Reason, Message, Next, Command string
	Since                                       *time.Time
	Aside                                       bool
	Log                                         []string
}

// command is the command of the link nearest to the cause.
func (e explanation) command() string {
	for i := len(e.Links) - 1; i >= 0; i-- {
		if c := e.Links[i].Command; c != "" {
			return c
		}
	}
	return ""
}

// logs reports whether the last object's log contains a text.
func (e explanation) logs(text string) bool {
	return strings.Contains(strings.Join(e.Links[len(e.Links)-1].Log, "\n"), text)
}

// commands are the commands of all links.
func (e explanation) commands() []string {
	var all []string
	for _, l := range e.Links {
		if l.Command != "" {
			all = append(all, l.Command)
		}
	}
	return all
}

// explains runs tarn explain until the verdict contains every text.
func (s *scenario) explains(kind, name string, texts ...string) explanation {
	s.t.Helper()
	return s.explainsWith("", kind, name, texts...)
}

// explainsWith is explains until the last object's log contains a text too. The log of a retried
// pod exists only while the pod does. The answer depends on time and on objects that no case
// watches, so explainsWith polls. It does so for twice a step's time, because each call starts a
// program.
func (s *scenario) explainsWith(log, kind, name string, texts ...string) explanation {
	s.t.Helper()
	return s.explainsBy(os.Getenv("KUBECONFIG"), log, kind, name, texts...)
}

// explainsBy is explainsWith with the rights of a kubeconfig.
func (s *scenario) explainsBy(kubeconfig, log, kind, name string, texts ...string) explanation {
	s.t.Helper()
	return s.explainsThat(kubeconfig, kind, name, fmt.Sprintf("the verdict to have %q, and the log %q", texts, log), func(e explanation) bool {
		return containsAll(e.Verdict, texts) && e.logs(log)
	})
}

// explainsThat runs tarn explain until the answer is as wanted.
func (s *scenario) explainsThat(kubeconfig, kind, name, what string, is func(explanation) bool) explanation {
	s.t.Helper()
	var e explanation
	s.printsThat(what, func(out string) bool {
		e = explanation{}
		if err := json.Unmarshal([]byte(out), &e); err != nil {
			s.t.Fatalf("%v in:\n%s", err, out)
		}
		return is(e)
	}, kind, name, "--output", "json", "--kubeconfig", kubeconfig)
	s.t.Log(e.Verdict)
	return e
}

// printsThat runs tarn explain until its output is as wanted, and gives the output.
func (s *scenario) printsThat(what string, is func(out string) bool, args ...string) string {
	s.t.Helper()
	over, again := time.NewTimer(2*s.limit()), time.NewTicker(200*time.Millisecond)
	defer over.Stop()
	defer again.Stop()
	for {
		out, _ := mustTool(s.t, 0, "", append([]string{"explain"}, args...)...)
		if is(out) {
			s.record(args)
			return out
		}
		select {
		case <-again.C:
		case <-over.C:
			s.t.Fatalf("of %s %s it is not told as it should be, want %s:\n%s", args[0], args[1], what, out)
		}
	}
}

// explainsClaim is explains for a claim of the case.
func (s *scenario) explainsClaim(name string, texts ...string) explanation {
	s.t.Helper()
	return s.explains("claim", s.name+"/"+name, texts...)
}

// does runs a command as tarn explain printed it.
func (s *scenario) does(command string) {
	s.t.Helper()
	path, err := filepath.Abs(filepath.Dir(tarnBinary()))
	if err != nil {
		s.t.Fatal(err)
	}
	shell := exec.Command("bash", "-ec", "set -o pipefail\n"+command)
	shell.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"))
	if out, err := shell.CombinedOutput(); err != nil {
		s.t.Fatalf("%s\n%v: %s", command, err, out)
	}
}

// claimWith makes a claim of the case's class after edits.
func (s *scenario) claimWith(name string, edits ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	s.t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.name}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &s.name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, Resources: corev1.VolumeResourceRequirements{Requests: size("2Mi")},
	}}
	for _, edit := range edits {
		edit(claim)
	}
	s.create(claim)
	return claim
}

// ofClass gives a claim another class than the case's.
func ofClass(class string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = &class }
}

// classWith makes a class beside the case's own and gives its name.
func (s *scenario) classWith(suffix, provisioner string, edits ...func(*storagev1.StorageClass)) string {
	s.t.Helper()
	class := &storagev1.StorageClass{ObjectMeta: named(s.name + suffix), Provisioner: provisioner}
	for _, edit := range edits {
		edit(class)
	}
	s.create(class)
	s.t.Cleanup(func() { s.deleteIfThere(class) })
	return class.Name
}

func late(class *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	class.VolumeBindingMode = &mode
}

func nowhere(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"no-such": "node"} }

// moods gives a section whose pod acts according to the claim's name, by the lines of a shell's
// case. For other names it runs otherwise.
func moods(lines, otherwise string, more fields) fields {
	return script{text: "case {{ pvc.metadata.name }} in\n" + lines + "\n*) " + otherwise + ";;\nesac"}.section(more)
}

// moody makes the case's provisioner, whose pods behave by the name of the claim.
func (s *scenario) moody() {
	s.t.Helper()
	creation := moods("fails) echo disk on fire > /pav/error; exit 3;;\ncrashes) exit 7;;\nslow) echo making it; sleep 1d;;", "true", asRequested)
	spec := creation["podTemplate"].(fields)["spec"].(fields)
	spec["restartPolicy"] = "{{ 'OnFailure' if pvc.metadata.name == 'crashes' else 'Never' }}"
	spec["nodeSelector"] = fields{"kubernetes.io/os": "{{ 'none' if pvc.metadata.name == 'unplaced' else 'linux' }}"}
	spec["volumes"] = []any{fields{"name": "host", "hostPath": fields{"path": "{{ '/e2e-no-such-folder' if pvc.metadata.name == 'mountless' else '/tmp' }}", "type": "Directory"}}}
	container := spec["containers"].([]any)[0].(fields)
	container["volumeMounts"] = []any{fields{"name": "host", "mountPath": "/host"}}
	container["image"] = "{{ 'no.example/such:image' if pvc.metadata.name == 'imageless' else 'busybox:1.36' }}"
	s.create(s.provisioner(fields{
		"volumeValidation": moods("refused) echo looking at shelf 7; echo shelf 7 is full > /pav/error; exit 1;;\nmeasured) echo measuring; sleep 1d;;", "true", nil),
		"volumeCreation":   creation,
		"volumeDeletion":   moods("keeps) echo still busy > /pav/error; exit 1;;", "true", nil),
		"volumeStaging":    moods("bad) echo no loop device > /pav/error; exit 1;;\nempty) true;;\nlong) echo mounting; sleep 1d;;", "mkdir -p /pav/volume", nil),
	}))
	s.class(corev1.PersistentVolumeReclaimDelete)
}

func TestExplainSaysWhyAVolumeIsNotDestroyed(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-deletion")
	s.moody()
	claim := s.bound(s.claim("keeps"))
	s.explains("volume", claim.Spec.VolumeName, "is Bound: claim "+s.name+"/keeps uses it")
	s.remove(claim)
	e := s.goesOn("volume", claim.Spec.VolumeName, "PavVolume", []string{"attempt ", " in ", ", at ", "Z; at once if the PavProvisioner is changed"},
		"is Released: its storage could not be removed: ", "still busy", " (attempt ")
	if want := "kubectl edit pavprovisioner " + s.name; e.command() != want {
		t.Errorf("the command is %q, want %q", e.command(), want)
	}
	provisioner := s.provisioner(nil)
	provisioner.Object["spec"] = fields{"volumeDeletion": script{text: "true"}.section(nil)}
	s.edit(provisioner)
	s.gone(&corev1.PersistentVolume{ObjectMeta: named(claim.Spec.VolumeName)})
}

func TestExplainSaysWhyAPodHasNotItsVolume(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-pod")
	s.moody()
	for _, c := range []struct {
		claim, wantLog, wantCommand string
		want                        []string
	}{
		{"bad", "", "kubectl edit pavprovisioner ", []string{"cannot be staged on node ", "no loop device"}},
		{"empty", "", "kubectl edit pavprovisioner ", []string{"cannot be staged on node ", "/pav/volume"}},
		{"long", "mounting", "", []string{"its staging pod tarn-volumes/pav-staging-", "has been running for", "has not made the volume available"}},
	} {
		t.Run(c.claim, func(t *testing.T) {
			sub := s.part(t)
			sub.step = 2 * soon // the kubelet's pause exceeds the cleanup's time only after some failures
			sub.bound(sub.claim(c.claim))
			pod := sub.consumer(c.claim, c.claim, stays)
			e := sub.explainsWith(c.wantLog, "pod", s.name+"/"+c.claim, c.want...)
			if !strings.Contains(e.command(), c.wantCommand) {
				t.Errorf("the command is %q, want %q", e.command(), c.wantCommand)
			}
			sub.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}})
		})
	}
	t.Run("a driver that its node does not have", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		vol := &corev1.PersistentVolume{ObjectMeta: named(s.name + "-static"), Spec: corev1.PersistentVolumeSpec{
			Capacity: size("2Mi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, StorageClassName: s.name + "-static",
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "no-such-driver", VolumeHandle: s.name}},
		}}
		sub.create(vol)
		t.Cleanup(func() { sub.deleteIfThere(vol) })
		claim := sub.claimWith("static", ofClass(s.name+"-static"))
		sub.bound(claim)
		pod := sub.consumer("static", "static", stays)
		sub.explains("pod", s.name+"/static", "PavProvisioner no-such-driver no longer exists, and node ")
		sub.remove(pod)
		sub.remove(claim)
	})
	t.Run("nothing, and the path is told in one line", func(t *testing.T) {
		sub := &scenario{t: t, ctx: s.ctx, name: s.name}
		sub.bound(sub.claim("fine"))
		pod := sub.consumer("fine", "fine", stays)
		sub.ready(pod)
		e := sub.explains("pod", s.name+"/fine", "is running: on node ", "claim "+s.name+"/fine from volume pvc-", "PavProvisioner "+s.name, "staged on node ")
		out, _ := mustTool(t, 0, "", "explain", "pod", s.name+"/fine")
		if out != e.Verdict+"\n" || !e.Healthy {
			t.Errorf("healthy %t, printed:\n%s", e.Healthy, out)
		}
	})
}

func TestExplainTellsWhatItsCallerMayRead(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-rights")
	s.moody()
	s.claim("refused")
	s.explainsClaim("refused", "rejects it, attempt ")
	s.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "view", Namespace: s.name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"persistentvolumeclaims", "pods", "events"}, Verbs: []string{"get", "list"}},
	}})
	s.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "view", Namespace: s.name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "viewer", Namespace: s.name}}})
	s.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "viewer", Namespace: s.name}})
	token, err := suite.logs.CoreV1().ServiceAccounts(s.name).CreateToken(s.ctx, "viewer", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Contexts {
		c.AuthInfo, c.Namespace = "viewer", s.name
	}
	config.AuthInfos = map[string]*clientcmdapi.AuthInfo{"viewer": {Token: token.Status.Token}}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	out := s.printsThat("the verdict to go by the claim's Events", func(out string) bool {
		first, _, _ := strings.Cut(out, "\n")
		return strings.HasPrefix(first, "claim "+s.name+"/refused is Pending: ") && strings.HasSuffix(first, "shelf 7 is full")
	}, "claim", "refused", "--kubeconfig", path)
	for _, want := range []string{
		"cannot read PavVolume pvc-", "needs permission to get pavvolumes.tarn.dev\n", "cannot read each StorageClass: needs permission to list storageclasses.storage.k8s.io\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("not said: %q in\n%s", want, out)
		}
	}
	classless := s.claimWith("classless", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = nil })
	if out, _ := mustTool(t, 0, "", "explain", "--kubeconfig", path, "claim", "classless"); classless.Spec.StorageClassName == nil &&
		!strings.Contains(out, "is Pending: it names no class, and no free volume without a class fits\n") { // a cluster may have a default class
		t.Errorf("that there is a default class cannot be told from here:\n%s", out)
	}
	if _, complaint := mustTool(t, 1, "", "explain", "--kubeconfig", path, "volume", "pvc-1"); !strings.Contains(complaint, "cannot read volume pvc-1: needs permission to get persistentvolumes") {
		t.Errorf("got %q", complaint)
	}
}

func TestExplainNamesWhatIsLikeANameThatIsNot(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-names")
	s.claim("data")
	for asked, want := range map[string]string{
		s.name + "/dta":     "there is no claim " + s.name + "/dta; did you mean data?",
		"default/" + s.name: "there is no claim default/" + s.name,
		"kube-system/data":  "there is no claim kube-system/data; there is claim ",
		s.name + "x/data":   "there is no claim " + s.name + "x/data, nor a namespace " + s.name + "x; did you mean namespace " + s.name,
	} {
		if _, complaint := mustTool(t, 1, "", "explain", "claim", asked); !strings.Contains(complaint, want) {
			t.Errorf("%s: got %q, want %q", asked, complaint, want)
		}
	}
	s.explainsClaim("data", `StorageClass "`+s.name+`" does not exist`)
	config, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Clusters {
		c.Server = "https://127.0.0.1:1"
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	if _, complaint := mustTool(t, 1, "", "explain", "--kubeconfig", path, "claim", s.name+"/data"); !strings.Contains(complaint, "cannot read claim "+s.name+"/data: the API server does not respond: dial tcp 127.0.0.1:1") {
		t.Errorf("where there is no cluster: got %q", complaint)
	}
}

func TestExplainSaysWhyAPoolHasNoSpares(t *testing.T) {
	t.Parallel()
	s := begin(t, "explain-pool")
	s.create(s.provisioner(fields{"volumeCreation": fails(asRequested), "volumeStaging": greeting}))
	s.class(corev1.PersistentVolumeReclaimDelete)
	set := s.pool(1, 2)
	e := s.explains("pvset", set.Name, "pvset "+set.Name+" is not Ready: claim ", "its volume could not be made, attempt ", complaint)
	s.since(e, "PersistentVolumeSet", set.Name, meta.FindStatusCondition(read(s, set).Status.Conditions, tarn.ConditionReady).LastTransitionTime)
	if e.Links[0].Object.Kind != "PersistentVolumeSet" || !strings.Contains(e.command(), "kubectl delete pavvolume pvc-") {
		t.Errorf("the chain begins with %+v, the command is %q", e.Links[0], e.command())
	}
	provisioner := s.provisioner(nil)
	provisioner.Object["spec"] = fields{"volumeCreation": fields{"capacity": "{{ requestedMinCapacity }}", "podTemplate": nil}}
	s.edit(provisioner)
	s.explains("pvset", set.Name, "is Ready: 1 of at least 1 spare volumes")
	s.bound(s.claim("one"))
	s.explains("pvset", set.Name, "is Ready: 1 of at least 1 spare volumes, 1 in use") // else the next claim would be served without it
	s.bound(s.claim("two"))
	s.does(s.explains("pvset", set.Name, "is not Ready: ", "maximumReplicas is 2; raise it").command())
	s.explains("pvset", set.Name, "is Ready: 1 of at least 1 spare volumes, 2 in use, 0 being made, at most 3")
	held := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["tarn.dev/pool","example.org/audit"]}}`))
	if err := suite.live.Patch(s.ctx, set, held); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.unhold(set) })
	s.delete(set)
	s.does(s.explains("pvset", set.Name, "is Terminating: finalizer example.org/audit keeps it; it belongs to the owner of the name example.org").command())
	s.gone(set)
}
