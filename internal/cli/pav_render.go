package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kyaml "sigs.k8s.io/yaml"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
	"tarn.dev/tarn/jinja"
)

// pavRender is one section to be evaluated.
type pavRender struct {
	name, section, kubeconfig          string
	claimFile, classFile, volumeFile   string
	nodeFile, objectsFile, newCapacity string
	readOnly                           bool
	provisioner                        *pavv1.PavProvisioner
	manifest                           *manifest
	claim                              *corev1.PersistentVolumeClaim
	class                              *storagev1.StorageClass
	volume                             *corev1.PersistentVolume
	node                               *corev1.Node
	record                             *tarnv1.PavVolume
	stage                              *tarnv1.PavStage
	// method is the recycle method, for a recycling.
	method string
	// grown is the size in bytes that an expansion must reach.
	grown int64
}

func newPavRenderCommand() *cobra.Command {
	var r pavRender
	cmd := &cobra.Command{
		Use:   "render FILE|- --section SECTION [--claim FILE] [--class FILE] [--volume FILE] [--node FILE]",
		Short: "Print the pod that a section results in",
		Long: "Evaluate a section of the PavProvisioner in a YAML file for a claim. Print the pod that Tarn would create as\n" +
			"YAML, and the section's other fields as comments. For a creation, print its claims first. Nothing is created.\n\n" +
			"Objects that you do not give are made up, as standard error says: a claim of 1Gi, a class without parameters,\n" +
			"a volume with the default handle, a node. Missing UIDs are made up too. get_pvc and get_pv\n" +
			"read from --pvcs, and with --kubeconfig from the cluster.",
		Example: "  tarn pav render provisioner.yaml --section creation --claim claim.yaml --class class.yaml\n" +
			"  tarn pav render provisioner.yaml --section staging --read-only",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return r.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&r.section, "section", "", "validation, creation, expansion, recycling, deletion, staging, node-expansion or unstaging")
	f.StringVar(&r.method, "method", string(tarnv1.RecycleFiles), "the method of a recycling: Files, Zero or Discard")
	f.StringVar(&r.newCapacity, "new-capacity", "", "the new size for an expansion; the default is twice the volume's size")
	f.StringVar(&r.name, "name", "", "the PavProvisioner to use, if the file has several")
	f.StringVar(&r.claimFile, "claim", "", "YAML file with the PersistentVolumeClaim")
	f.StringVar(&r.classFile, "class", "", "YAML file with the StorageClass")
	f.StringVar(&r.volumeFile, "volume", "", "YAML file with the PersistentVolume, for all sections except creation; with it, validation is for a volume written by hand")
	f.StringVar(&r.nodeFile, "node", "", "YAML file with the Node, for sections that run on a node, and for topology Node")
	f.BoolVar(&r.readOnly, "read-only", false, "stage the volume read-only")
	f.StringVar(&r.objectsFile, "pvcs", "", pvcsUsage)
	f.StringVar(&r.kubeconfig, "kubeconfig", "", "kubeconfig file of a cluster for get_pvc and get_pv to read from")
	_ = cmd.MarkFlagRequired("section")
	return cmd
}

func (r *pavRender) run(cmd *cobra.Command, file string) error {
	step, err := stepOf(r.section)
	if err != nil {
		return err
	}
	if r.provisioner, r.manifest, err = readProvisioner(cmd, file, r.name); err != nil {
		return err
	}
	reader, err := r.reader()
	if err != nil {
		return err
	}
	if err := r.objects(cmd, step); err != nil {
		return err
	}
	if err := r.grow(step); err != nil {
		return err
	}
	namespaces, err := stepNamespaces(cmd)
	if err != nil {
		return err
	}
	steps := &steppod.Steps{Reader: reader, StateDir: tarnv1.DefaultStateDir, Namespaces: namespaces}
	evaluated, err := r.evaluate(cmd.Context(), steps, step)
	if err != nil {
		return r.explain(cmd, step, err)
	}
	prepared, err := r.prepare(cmd.Context(), steps, step)
	if err != nil {
		return r.explain(cmd, step, err)
	}
	if step == tarnv1.StepCreation {
		if err := r.printClaims(cmd, steps); err != nil {
			return err
		}
	}
	return r.print(cmd, step, evaluated, prepared)
}

// printClaims prints the claims that are made before the creation pod.
func (r *pavRender) printClaims(cmd *cobra.Command, steps *steppod.Steps) error {
	claims, err := steps.PrepareClaims(cmd.Context(), r.provisioner, r.record, r.claim, 0)
	if err != nil {
		return r.explain(cmd, tarnv1.StepCreation, err)
	}
	for _, claim := range claims {
		claim.APIVersion, claim.Kind = "v1", "PersistentVolumeClaim"
		text, err := shown(claim)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s---\n", text); err != nil {
			return err
		}
	}
	return nil
}

// shown is an object as YAML, without its status.
func shown(o client.Object) ([]byte, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	delete(fields, "status")
	return kyaml.Marshal(fields)
}

// stepOf reads --section. It also accepts the names of the fields.
func stepOf(section string) (tarnv1.Step, error) {
	steps := []tarnv1.Step{
		tarnv1.StepValidation, tarnv1.StepCreation, tarnv1.StepExpansion, tarnv1.StepRecycling, tarnv1.StepDeletion,
		tarnv1.StepStaging, tarnv1.StepNodeExpansion, tarnv1.StepUnstaging,
	}
	var names []string
	for _, step := range steps {
		if section == string(step) || "spec."+section == steppod.SectionField(step) {
			return step, nil
		}
		names = append(names, string(step))
	}
	return "", fmt.Errorf("--section %q is unknown; give one of %s", section, strings.Join(names, ", "))
}

// reader returns where get_pvc and get_pv find their objects.
func (r *pavRender) reader() (client.Reader, error) {
	found := &fileObjects{objects: map[string]any{}, given: r.objectsFile != ""}
	if err := readJSONObject(r.objectsFile, "--pvcs", &found.objects); err != nil || r.kubeconfig == "" {
		return found, err
	}
	live, err := connection{kubeconfig: r.kubeconfig}.client()
	if err != nil {
		return nil, err
	}
	found.Reader = live
	return found, nil
}

// objects reads the objects of the context, and makes up those that are not given.
func (r *pavRender) objects(cmd *cobra.Command, step tarnv1.Step) error {
	note := func(what string) { cmd.PrintErrln("note: " + what) }
	stages := onNode(step)
	var err error
	if r.claim, err = given(cmd, "--claim", r.claimFile, sampleClaim()); err != nil {
		return err
	}
	if r.claimFile == "" {
		note("without --claim, for a made-up claim default/example of 1Gi, ReadWriteOnce, Filesystem")
	}
	if r.class, err = given(cmd, "--class", r.classFile, sampleClass(r.provisioner.Name)); err != nil {
		return err
	}
	if r.class.Provisioner != r.provisioner.Name {
		note(fmt.Sprintf("the class %s names provisioner %q, not %q", r.class.Name, r.class.Provisioner, r.provisioner.Name))
	}
	if r.classFile == "" && (r.volumeFile == "" || !stages) {
		note("without --class, for a made-up class without parameters")
	}
	r.fillClaim()
	if r.volume, err = given(cmd, "--volume", r.volumeFile, sampleVolume(r.provisioner.Name, r.claim, r.class)); err != nil {
		return err
	}
	if r.volume.Spec.CSI == nil {
		return fmt.Errorf("--volume: PersistentVolume %s has no spec.csi; a volume of a PavProvisioner has its name there as driver", r.volume.Name)
	}
	if r.volumeFile == "" && (stages || step == tarnv1.StepExpansion || step == tarnv1.StepRecycling) {
		note("without --volume, for a made-up volume with the default handle")
	}
	if r.node, err = given(cmd, "--node", r.nodeFile, sampleNode()); err != nil {
		return err
	}
	if r.nodeFile == "" && stages {
		note("without --node, for a made-up node node-1")
	}
	return r.owners()
}

// onNode says whether a step runs on the node where the volume is staged.
func onNode(step tarnv1.Step) bool {
	return step == tarnv1.StepStaging || step == tarnv1.StepUnstaging || step == tarnv1.StepNodeExpansion
}

// fillClaim sets the fields of a claim from a file that the API server would set.
func (r *pavRender) fillClaim() {
	if r.claim.Namespace == "" {
		r.claim.Namespace = metav1.NamespaceDefault
	}
	if r.claim.UID == "" {
		r.claim.UID = sampleClaimUID
	}
	if r.claim.Spec.VolumeMode == nil {
		r.claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeFilesystem)
	}
	if r.claim.Spec.StorageClassName == nil {
		r.claim.Spec.StorageClassName = &r.class.Name
	}
}

// owners makes the record and the stage that would own the pods.
func (r *pavRender) owners() error {
	claimJSON, err := steppod.SnapshotClaim(r.claim)
	if err != nil {
		return err
	}
	classJSON, err := steppod.SnapshotClass(r.class)
	if err != nil {
		return err
	}
	of := tarnv1.ProvisionerReference{Name: r.provisioner.Name}
	r.record = &tarnv1.PavVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(r.claim.UID), UID: sampleRecordUID},
		Spec: tarnv1.PavVolumeSpec{
			Provisioner: of, Claim: tarnv1.ClaimReference{Namespace: r.claim.Namespace, Name: r.claim.Name, UID: r.claim.UID},
			VolumeMode: *r.claim.Spec.VolumeMode, AccessModes: r.claim.Spec.AccessModes,
			RequestedMinCapacity: volume.Bytes(r.claim.Spec.Resources.Requests[corev1.ResourceStorage]),
			ClaimSnapshot:        apiextensionsv1.JSON{Raw: claimJSON}, ClassSnapshot: apiextensionsv1.JSON{Raw: classJSON},
		},
	}
	if from, has := volume.Source(r.claim); has && !volume.ForPopulator(r.claim) {
		r.record.Spec.Source = sampleSource(r.claim, from.Kind, from.Name, r.class)
	}
	if limit, ok := r.claim.Spec.Resources.Limits[corev1.ResourceStorage]; ok {
		r.record.Spec.RequestedMaxCapacity = ptr.To(volume.Bytes(limit))
	}
	r.record.Status.Capacity = r.record.Spec.RequestedMinCapacity // it was created
	if r.volumeFile != "" {                                       // a deletion sees the volume as it was created
		r.record.Status.Handle = r.volume.Spec.CSI.VolumeHandle
		r.record.Status.Capacity = volume.Bytes(r.volume.Spec.Capacity[corev1.ResourceStorage])
	}
	if r.provisioner.Spec.Topology == pavv1.TopologyNode && r.nodeFile != "" {
		r.record.Status.NodeName = r.node.Name
	}
	r.stage = &tarnv1.PavStage{
		ObjectMeta: metav1.ObjectMeta{Name: tarnv1.StageName(r.volume.UID, r.node.Name, r.readOnly), UID: sampleStageUID},
		Spec: tarnv1.PavStageSpec{
			Provisioner: of, VolumeName: r.volume.Name, VolumeUID: r.volume.UID, NodeName: r.node.Name, ReadOnly: r.readOnly,
		},
	}
	return nil
}

// evaluate returns the section after its templates are evaluated.
func (r *pavRender) evaluate(ctx context.Context, steps *steppod.Steps, step tarnv1.Step) (any, error) {
	var vars map[string]any
	var err error
	switch step {
	case tarnv1.StepStaging, tarnv1.StepUnstaging:
		vars, err = steppod.StageVars(r.stage, r.volume, r.claim, r.node)
	case tarnv1.StepValidation:
		if r.byHand() {
			vars, err = steppod.StaticVars(r.volume, r.claim)
			break
		}
		vars, err = steppod.ValidationVars(r.record, r.claim)
	case tarnv1.StepDeletion:
		vars, err = steppod.DeletionVars(r.record)
	case tarnv1.StepRecycling:
		vars, err = steppod.RecyclingVars(r.record, r.volume, tarnv1.RecycleMethod(r.method))
	case tarnv1.StepExpansion:
		vars, err = steppod.ExpansionVars(r.record, r.claim, r.grown)
	case tarnv1.StepNodeExpansion:
		vars, err = steppod.NodeExpansionVars(r.nodeExpansion())
	default:
		vars, err = steppod.RecordVars(r.record, r.claim)
	}
	if err != nil {
		return nil, err
	}
	name := r.record.Name
	if onNode(step) {
		name = r.volume.Name
	}
	return steps.Render(ctx, step, r.provisioner, r.claim.Namespace, name, vars)
}

// byHand says whether the step is the validation of a volume written by hand.
func (r *pavRender) byHand() bool {
	return r.volumeFile != "" || !slices.Contains(r.provisioner.Spec.ProvisioningModes, pavv1.ModeDynamic)
}

// prepare returns the pod as the controllers would create it, on the first attempt.
func (r *pavRender) prepare(ctx context.Context, steps *steppod.Steps, step tarnv1.Step) (*steppod.Prepared, error) {
	switch step {
	case tarnv1.StepValidation:
		if r.byHand() {
			return steps.PrepareStatic(ctx, r.provisioner, r.stage, r.volume, r.claim)
		}
		return steps.PrepareValidation(ctx, r.provisioner, r.record, r.claim, 1)
	case tarnv1.StepCreation:
		return steps.PrepareCreation(ctx, r.provisioner, r.record, r.claim, 1)
	case tarnv1.StepDeletion:
		return steps.PrepareDeletion(ctx, r.provisioner, r.record, 1)
	case tarnv1.StepRecycling:
		pod, err := steps.PrepareRecycling(ctx, step, r.provisioner, steppod.Passage{
			Record: r.record, Volume: r.volume, Claim: r.claim.UID, Method: tarnv1.RecycleMethod(r.method),
		})
		return &steppod.Prepared{Pod: pod}, err
	case tarnv1.StepExpansion:
		return steps.PrepareExpansion(ctx, r.provisioner, r.record, r.claim, r.grown, 1)
	case tarnv1.StepNodeExpansion:
		return steps.PrepareNodeExpansion(ctx, r.provisioner, r.nodeExpansion())
	}
	return steps.PrepareStage(ctx, step, r.provisioner, r.stage, r.volume, r.claim, r.node, 1)
}

// grow sets the volume's size, and the size that it must reach.
func (r *pavRender) grow(step tarnv1.Step) error {
	if step != tarnv1.StepExpansion && step != tarnv1.StepNodeExpansion {
		return nil
	}
	has := r.volume.Spec.Capacity[corev1.ResourceStorage]
	r.record.Status.Handle, r.record.Status.Capacity = r.volume.Spec.CSI.VolumeHandle, volume.Bytes(has)
	if r.claim.Status.Capacity == nil {
		r.claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: has}
	}
	r.grown = 2 * r.record.Status.Capacity
	if r.newCapacity == "" {
		return nil
	}
	var err error
	if r.grown, err = volume.ParseCapacity(r.newCapacity, volume.RoundUp); err != nil {
		return fmt.Errorf("--new-capacity: %w", err)
	}
	return nil
}

func (r *pavRender) nodeExpansion() steppod.NodeExpansion {
	return steppod.NodeExpansion{
		Stage: r.stage, Record: r.record, Volume: r.volume, Claim: r.claim, Node: r.node, NewCapacity: r.grown, Attempt: 1,
	}
}

// explain prints why the section yields no pod: where in the file a template is wrong, or why Tarn
// rejects the section.
func (r *pavRender) explain(cmd *cobra.Command, step tarnv1.Step, err error) error {
	if f, ok := r.failure(step, err); ok {
		cmd.PrintErrln(strings.TrimRight(f.String(), "\n"))
		return exitError{1}
	}
	return err
}

// failure says why a section yields no pod. ok is false where the provisioner is not at fault.
func (r *pavRender) failure(step tarnv1.Step, err error) (f finding, ok bool) {
	var e *jinja.Error
	if errors.As(err, &e) && e.Line > 0 {
		l := &linter{manifest: r.manifest}
		l.sayInTemplate(levelError, e.Path, e.Line, e.Column, string(e.Kind)+" error: "+e.Message)
		return l.found[0], true
	}
	if s := steppod.AsStepError(err); s != nil {
		return r.manifest.findingAt(levelError, steppod.SectionField(step), nil, s.Reason+": "+s.Message), true
	}
	return finding{}, false
}

func (r *pavRender) print(cmd *cobra.Command, step tarnv1.Step, evaluated any, prepared *steppod.Prepared) error {
	section, _ := evaluated.(map[string]any)
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(section)) {
		if key == steppod.PodField(step) {
			continue
		}
		value, err := json.Marshal(section[key])
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "# %s.%s: %s\n", steppod.SectionField(step), key, value)
	}
	if prepared.Pod == nil {
		fmt.Fprintf(&b, "# %s has no %s: no pod is run\n", steppod.SectionField(step), steppod.PodField(step))
		_, err := cmd.OutOrStdout().Write([]byte(b.String()))
		return err
	}
	pod := prepared.Pod
	pod.APIVersion, pod.Kind = "v1", "Pod"
	text, err := shown(pod)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s%s", b.String(), text)
	return err
}
