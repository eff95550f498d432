package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
)

// pavTry is `tarn pav test`: it takes one provisioner through the life of a volume.
type pavTry struct {
	output                      output
	connection                  connection
	name, prefix, fixed         string
	withFiles                   []string
	claimFile, classFile, image string
	volumeFile                  string
	timeout                     time.Duration
	keep                        bool

	// The objects that the test creates. Provisioner, class and volume share one name. volume is
	// set only when the test is of a volume written by hand; its class is not created.
	provisioner     *unstructured.Unstructured
	class           *storagev1.StorageClass
	volume          *corev1.PersistentVolume
	given           volumeOf // driver and handle of the volume in --volume
	claim           *corev1.PersistentVolumeClaim
	writer, reader  *corev1.Pod
	provisionerName string
	namespace       string
	// companions are the objects of --with; made are those that the test has created.
	companions, made []*unstructured.Unstructured
	// foreign says that the namespace existed before. Then nothing has been created and nothing is
	// removed.
	foreign bool
	// readOnly says that the volume can only be read.
	readOnly bool

	// failed is the attempt that the test made fail, zero for none. generation is the provisioner's
	// generation after its last change. It separates failures before that change from those after
	// it.
	failed     int32
	generation int64
	// took is how long a step took, where objects show that more exactly than the wait for it.
	took time.Duration

	world  *tryWorld
	out    io.Writer
	report tryReport
}

// tryReport is what --output json prints.
type tryReport struct {
	Provisioner string    `json:"provisioner"`
	Name        string    `json:"name"`
	Namespace   string    `json:"namespace"`
	Passed      bool      `json:"passed"`
	Steps       []tryStep `json:"steps"`
	// Story is what the cluster says about a failure.
	Story []string `json:"story,omitempty"`
	// Left is what could not be removed.
	Left []string `json:"left,omitempty"`
}

// tryStep is the result of one step.
type tryStep struct {
	Name    string  `json:"name"`
	Passed  bool    `json:"passed"`
	Seconds float64 `json:"seconds"`
	Detail  string  `json:"detail,omitempty"`
}

func newPavTestCommand() *cobra.Command {
	var try pavTry
	cmd := &cobra.Command{
		Use:   "test FILE|-",
		Short: "Test a provisioner on a cluster, through the whole life of a volume",
		Long: "Test the PavProvisioner in a YAML file on the current cluster: under a temporary name, with a class, a claim\n" +
			"and two pods in a temporary namespace. One creation is made to fail and undone. Then the claim is validated. The volume is\n" +
			"created, bound, staged, written by one pod, expanded if there is volumeExpansion, read by a second pod on the\n" +
			"same node, unstaged, recycled if there is volumeRecycling, and deleted, and nothing may be left. Each step is\n" +
			"reported with its time, and a failure with what the cluster says about it.\n\n" +
			"With --volume, or if provisioningModes is only Static, a volume written by hand is tested instead: bound, staged,\n" +
			"written, read, unstaged and released. The test uses handle, attributes and options of --volume. Its storage\n" +
			"must exist and must not be in use: the test writes a file to it. Without --volume the handle is made up.\n\n" +
			"Everything is removed at the end, also after a failure or Ctrl-C, unless you give --keep. The pods of\n" +
			"the provisioner run where its templates say, with all the rights that they request.\n\n" +
			"--claim and --class give what the templates need: parameters, annotations, modes, sizes. The temporary namespace,\n" +
			"class and provisioner replace those that they name. --with creates other objects that are needed, in the temporary\n" +
			"namespace if they name none; --namespace gives that namespace a fixed name that templates can use.\n\n" +
			"A read-only volume, by its modes or spec.csi.readOnly, is read by both pods and not written.\n" +
			"A pod that cannot start because an image, a Secret or a mount is missing ends the test at once.",
		Example: "  tarn pav test provisioner.yaml\n" +
			"  tarn pav test provisioner.yaml --volume volume.yaml\n" +
			"  tarn pav test provisioner.yaml --class class.yaml --claim claim.yaml --timeout 5m\n" +
			"  tarn pav test provisioner.yaml --with secret.yaml --namespace storage-test",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return try.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&try.prefix, "namespace-prefix", "pav-test-", "prefix of the temporary namespace's name")
	f.StringVar(&try.fixed, "namespace", "", "name of the temporary namespace, which must not exist yet; the default is made up")
	f.StringArrayVar(&try.withFiles, "with", nil, "YAML file with objects that the provisioner needs, such as Secrets: created before the test, removed after it; may be repeated")
	f.DurationVar(&try.timeout, "timeout", 4*time.Minute, "deadline of the test; cleanup has the same time again")
	f.BoolVar(&try.keep, "keep", false, "keep everything at the end, for inspection")
	f.StringVar(&try.name, "name", "", "the PavProvisioner to use, if the file has several")
	f.StringVar(&try.claimFile, "claim", "", "YAML file with the PersistentVolumeClaim to create; the default is 1Gi, ReadWriteOnce")
	f.StringVar(&try.classFile, "class", "", "YAML file with the StorageClass to create; the default has no parameters")
	f.StringVar(&try.volumeFile, "volume", "", "YAML file with a PersistentVolume written by hand, to test instead of one that is made for a claim")
	f.StringVar(&try.image, "image", "busybox:1.36", "image with a shell, for the pods that write and read")
	try.output.register(cmd)
	try.connection.register(cmd, f)
	return cmd
}

func (t *pavTry) run(cmd *cobra.Command, file string) error {
	if err := t.prepare(cmd, file); err != nil {
		return err
	}
	if t.out = cmd.OutOrStdout(); t.output != outputTable {
		t.out = io.Discard
	}
	// The watches continue during the cleanup.
	unhurried := context.WithoutCancel(cmd.Context())
	watching, stop := context.WithCancel(unhurried)
	defer stop()
	var err error
	if t.world, err = newTryWorld(watching, t.connection, t.provisionerName, t.namespace); err != nil {
		return err
	}
	fmt.Fprintf(t.out, "testing PavProvisioner %s as %s in namespace %s\n", t.report.Provisioner, t.provisionerName, t.namespace)
	ctx, cancel := context.WithTimeout(cmd.Context(), t.timeout)
	defer cancel()
	err = t.life(ctx)
	if t.report.Passed = err == nil; err != nil && !t.foreign {
		t.explain(unhurried)
	}
	t.end(unhurried)
	told := func(io.Writer) error { return nil } // each step has been printed already
	if err := t.output.print(cmd.OutOrStdout(), t.report, told); err != nil {
		return err
	}
	if !t.report.Passed {
		return exitError{1}
	}
	return nil
}

// prepare reads the provisioner and builds all objects to create.
func (t *pavTry) prepare(cmd *cobra.Command, file string) error {
	p, m, err := readProvisioner(cmd, file, t.name)
	if err != nil {
		return err
	}
	suffix := fmt.Sprintf("-%05x", rand.IntN(1<<20))
	t.provisionerName = strings.TrimRight(p.Name[:min(len(p.Name), 63-len(suffix))], "-") + suffix
	t.namespace = t.prefix + suffix[1:]
	if err := t.prepareWith(cmd); err != nil {
		return err
	}
	t.report = tryReport{Provisioner: p.Name, Name: t.provisionerName, Namespace: t.namespace}

	t.provisioner = m.unstructured()
	t.provisioner.Object["metadata"] = map[string]any{}
	delete(t.provisioner.Object, "status")
	t.provisioner.SetName(t.provisionerName)

	byHand := t.volumeFile != "" || !slices.Contains(p.Spec.ProvisioningModes, pavv1.ModeDynamic)
	switch {
	case byHand && !slices.Contains(p.Spec.ProvisioningModes, pavv1.ModeStatic):
		return fmt.Errorf("--volume: PavProvisioner %s does not stage volumes written by hand; add Static to its spec.provisioningModes, or omit --volume", p.Name)
	case byHand && t.classFile != "":
		return fmt.Errorf("--class: a volume written by hand has no class; put its parameters into the volumeAttributes of --volume")
	}
	if err := t.prepareClass(cmd); err != nil {
		return err
	}
	if err := t.prepareClaim(cmd); err != nil || !byHand {
		return err
	}
	return t.prepareVolume(cmd)
}

func (t *pavTry) prepareClass(cmd *cobra.Command) (err error) {
	if t.class, err = given(cmd, "--class", t.classFile, sampleClass(t.provisionerName)); err != nil {
		return err
	}
	t.class.ObjectMeta = metav1.ObjectMeta{Name: t.provisionerName, Labels: t.class.Labels}
	t.class.Provisioner = t.provisionerName
	if t.expands() {
		t.class.AllowVolumeExpansion = ptr.To(true)
	}
	t.class.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimDelete)
	return nil
}

func (t *pavTry) prepareClaim(cmd *cobra.Command) (err error) {
	if t.claim, err = given(cmd, "--claim", t.claimFile, sampleClaim()); err != nil {
		return err
	}
	if t.claim.Spec.VolumeName != "" {
		return fmt.Errorf("--claim: spec.volumeName %q requests an existing volume; remove the field, the test makes a new volume", t.claim.Spec.VolumeName)
	}
	t.claim.ObjectMeta = metav1.ObjectMeta{
		Name: t.claim.Name, Namespace: t.namespace, Labels: t.claim.Labels, Annotations: t.claim.Annotations,
	}
	t.claim.Spec.StorageClassName = &t.class.Name
	t.claim.Status = corev1.PersistentVolumeClaimStatus{}
	t.preparePods()
	return nil
}

func (t *pavTry) preparePods() {
	t.writer, t.reader = tryPods(t.claim, t.image, fmt.Sprintf("tarn-%016x", rand.Uint64()))
	if t.readOnly = t.onlyRead(); t.readOnly {
		onlyReading(t.writer, t.reader)
	}
}

// step runs one step and reports it.
func (t *pavTry) step(ctx context.Context, name string, do func(context.Context) (string, error)) error {
	began := time.Now()
	detail, err := do(ctx)
	took := time.Since(began)
	if t.took > 0 {
		took, t.took = t.took, 0
	}
	s := tryStep{Name: name, Passed: err == nil, Seconds: took.Round(time.Millisecond).Seconds(), Detail: detail}
	mark := "ok    "
	if err != nil {
		mark, s.Detail = "FAILED", err.Error()
		if errors.Is(context.Cause(ctx), context.Canceled) {
			s.Detail = "interrupted: " + s.Detail
		}
	}
	t.report.Steps = append(t.report.Steps, s)
	line := fmt.Sprintf("%s %-12s %6.2f s  %s", mark, name, s.Seconds, s.Detail)
	fmt.Fprintln(t.out, strings.TrimRight(line, " "))
	return err
}

// prepareWith reads the objects of --with, of any kind.
func (t *pavTry) prepareWith(cmd *cobra.Command) error {
	for _, file := range t.withFiles {
		shown, text, err := readInput(cmd, file)
		if err != nil {
			return fmt.Errorf("--with: %w", err)
		}
		all, wrong := readManifests(shown, text)
		if len(wrong) > 0 {
			return fmt.Errorf("--with: %s", wrong[0])
		}
		for _, m := range all {
			if m.kind() == "" || m.text("apiVersion") == "" || m.name() == "" {
				return fmt.Errorf("--with: %s, document %d needs apiVersion, kind and metadata.name; add them", shown, m.number)
			}
			t.companions = append(t.companions, m.unstructured())
		}
	}
	if t.fixed != "" {
		if wrong := validation.IsDNS1123Label(t.fixed); len(wrong) > 0 {
			return fmt.Errorf("--namespace %q is not a valid namespace name: %s", t.fixed, wrong[0])
		}
		t.namespace = t.fixed
	}
	return nil
}

// makeNamespace creates the namespace of the test. It rejects one that exists, because the test
// deletes the namespace with all its objects.
func (t *pavTry) makeNamespace(ctx context.Context) error {
	err := t.world.live.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: t.namespace}})
	if t.foreign = apierrors.IsAlreadyExists(err); t.foreign {
		return fmt.Errorf("namespace %s exists already, and the test would delete it at the end: give --namespace a name that does not exist", t.namespace)
	}
	if err != nil {
		return fmt.Errorf("creating namespace %s: %w", t.namespace, err)
	}
	return nil
}

// makeCompanions creates the objects of --with, in the order of the files. A namespaced object that
// names no namespace is created in that of the test.
func (t *pavTry) makeCompanions(ctx context.Context) error {
	for _, o := range t.companions {
		what := o.GetKind() + " " + o.GetName()
		namespaced, err := t.world.live.IsObjectNamespaced(o)
		if err != nil {
			return fmt.Errorf("--with: %s: %w", what, err)
		}
		if namespaced && o.GetNamespace() == "" {
			o.SetNamespace(t.namespace)
		}
		err = client.WithFieldValidation(t.world.live, "Strict").Create(ctx, o)
		if apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("--with: %s exists already, and the test would delete it at the end: leave it out, or give it another name", what)
		}
		if err != nil {
			return fmt.Errorf("--with: creating %s: %w", what, err)
		}
		t.made = append(t.made, o)
	}
	return nil
}

// discardCompanions removes the objects of --with, the last one first.
func (t *pavTry) discardCompanions(ctx context.Context) error {
	var left []string
	for _, o := range slices.Backward(t.made) {
		err := t.world.live.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID())})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			left = append(left, fmt.Sprintf("%s %s: %v", o.GetKind(), o.GetName(), err))
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("removing the objects of --with: %s", strings.Join(left, "; "))
	}
	return nil
}
