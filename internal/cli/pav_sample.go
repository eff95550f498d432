package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/volume"
	"tarn.dev/tarn/jinja"
)

// Identities of made-up objects, which exist in no cluster.
const (
	sampleClaimUID  = types.UID("00000000-0000-4000-8000-000000000001")
	sampleRecordUID = types.UID("00000000-0000-4000-8000-000000000002")
	sampleVolumeUID = types.UID("00000000-0000-4000-8000-000000000003")
	sampleStageUID  = types.UID("00000000-0000-4000-8000-000000000004")
	sampleSourceUID = types.UID("00000000-0000-4000-8000-000000000005")
)

// sampleClaim returns a claim that asks for as little as a claim can.
func sampleClaim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "example", Namespace: metav1.NamespaceDefault},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
}

// sampleClass returns a class without parameters.
func sampleClass(provisioner string) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: provisioner}, Provisioner: provisioner}
}

// sampleVolume returns the volume made for a claim if the creation chooses no handle.
func sampleVolume(provisioner string, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(claim.UID), UID: sampleVolumeUID},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   claim.Spec.AccessModes,
			VolumeMode:                    ptr.To(ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)),
			StorageClassName:              class.Name,
			MountOptions:                  class.MountOptions,
			PersistentVolumeReclaimPolicy: ptr.Deref(class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: provisioner, VolumeHandle: "pvc-" + string(claim.UID), VolumeAttributes: class.Parameters,
				FSType: class.Parameters[steppod.FSTypeParameter],
			}},
		},
	}
}

// sampleSource returns a source of the size that a claim requests, with the class of the claim.
func sampleSource(claim *corev1.PersistentVolumeClaim, kind, name string, class *storagev1.StorageClass) *tarnv1.PavVolumeSource {
	handle := "pvc-" + string(sampleSourceUID)
	return &tarnv1.PavVolumeSource{
		Kind: kind, Namespace: claim.Namespace, Name: name, UID: sampleSourceUID, Storage: handle, Handle: handle,
		Capacity: volume.Bytes(claim.Spec.Resources.Requests[corev1.ResourceStorage]), VolumeMode: *claim.Spec.VolumeMode, Parameters: class.Parameters,
	}
}

func sampleNode() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{corev1.LabelHostname: "node-1"}}}
}

// given returns the only object of a kind T in the file of a flag, or fallback if the flag names no
// file. It rejects fields that the kind does not have.
func given[T any](cmd *cobra.Command, flag, file string, fallback *T) (*T, error) {
	if file == "" {
		return fallback, nil
	}
	shown, text, err := readInput(cmd, file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	all, wrong := readManifests(shown, text)
	if len(wrong) > 0 {
		return nil, fmt.Errorf("%s: %s", flag, wrong[0])
	}
	kind := reflect.TypeFor[T]().Name()
	var found *manifest
	for _, m := range all {
		if m.kind() != kind {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("%s: %s has more than one %s: %s and %s; give a file with one", flag, shown, kind, found.name(), m.name())
		}
		found = m
	}
	if found == nil {
		return nil, fmt.Errorf("%s: %s has no %s", flag, shown, kind)
	}
	object := new(T)
	strict, err := kjson.UnmarshalStrict(found.json, object)
	if err == nil && len(strict) > 0 {
		err = strict[0]
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s, document %d: %w", flag, shown, found.number, err)
	}
	return object, nil
}

// fileObjects answers get_pvc and get_pv from the objects of --pvcs: claims by namespace/name,
// volumes by name. It asks the cluster, if there is one, for other objects.
type fileObjects struct {
	client.Reader
	objects map[string]any
	given   bool // --pvcs was
}

func (f *fileObjects) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	kind, name := "claim", key.String()
	if key.Namespace == "" {
		kind, name = "volume", key.Name
	}
	object, ok := f.objects[name]
	switch {
	case ok:
		data, err := json.Marshal(object)
		if err != nil {
			return err
		}
		if err := json.NewDecoder(bytes.NewReader(data)).Decode(into); err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("--pvcs: %s is not a %s: %v", name, kind, err))
		}
		return nil
	case f.Reader != nil:
		return f.Reader.Get(ctx, key, into, options...)
	case f.given:
		absent := apierrors.NewNotFound(corev1.Resource(kind), name)
		absent.ErrStatus.Message = fmt.Sprintf("--pvcs has no %s %s", kind, name)
		return absent
	}
	return apierrors.NewBadRequest(fmt.Sprintf("no cluster is configured to read it from; give --pvcs FILE with a %s %s, or --kubeconfig", kind, name))
}

// sample holds the objects that lint evaluates templates for. An object that is nil is made up.
type sample struct {
	claim *corev1.PersistentVolumeClaim
	class *storagev1.StorageClass
	node  *corev1.Node
}

// readSample reads the files of --claim, --class and --node, any of which may be empty.
func readSample(cmd *cobra.Command, claimFile, classFile, nodeFile string) (s sample, err error) {
	if s.claim, err = given[corev1.PersistentVolumeClaim](cmd, "--claim", claimFile, nil); err != nil {
		return s, err
	}
	if s.class, err = given[storagev1.StorageClass](cmd, "--class", classFile, nil); err != nil {
		return s, err
	}
	s.node, err = given[corev1.Node](cmd, "--node", nodeFile, nil)
	return s, err
}

// rendering returns a section, ready to be evaluated for the sample and a made-up volume.
func (s sample) rendering(p *pavv1.PavProvisioner, m *manifest, section steppod.Section) (*pavRender, error) {
	r := &pavRender{
		provisioner: p, manifest: m, method: firstMethod(section),
		claim: cmp.Or(s.claim.DeepCopy(), sampleClaim()), class: cmp.Or(s.class.DeepCopy(), sampleClass(p.Name)),
		node: cmp.Or(s.node.DeepCopy(), sampleNode()),
	}
	r.fillClaim()
	r.volume = sampleVolume(p.Name, r.claim, r.class)
	return r, errors.Join(r.owners(), r.grow(section.Step))
}

// check evaluates each section for the sample. It returns what is wrong with the results, without
// the findings already in said.
func (s sample) check(ctx context.Context, p *pavv1.PavProvisioner, m *manifest, n steppod.Namespaces, said findings) findings {
	l := &linter{manifest: m}
	if s.class != nil && s.class.Provisioner != p.Name {
		l.say(levelNote, "", "--class: StorageClass %s names provisioner %q, not %q", s.class.Name, s.class.Provisioner, p.Name)
	} else if s.class != nil {
		for _, unknown := range steppod.UnknownParameters(p, s.class) {
			l.say(levelWarning, "", "--class: %s", unknown)
		}
	}
	steps := &steppod.Steps{Reader: &fileObjects{}, StateDir: tarnv1.DefaultStateDir, Namespaces: n}
	for _, section := range steppod.Sections(p) {
		r, err := s.rendering(p, m, section)
		var evaluated any
		if err == nil {
			evaluated, err = r.evaluate(ctx, steps, section.Step)
		}
		if err == nil {
			whole := &linter{manifest: m, namespaces: n}
			if of, ok := evaluated.(fields); ok && of[steppod.PodField(section.Step)] != nil {
				for _, problem := range steppod.CheckPodTemplate(steppod.JoinField(section.Field, steppod.PodField(section.Step)), of[steppod.PodField(section.Step)]) {
					whole.problem(problem)
				}
			}
			whole.checkPod(steppod.Section{Step: section.Step, Field: section.Field, Object: evaluated})
			l.found = append(l.found, whole.found...)
			if len(whole.found.only(levelError)) > 0 {
				continue // these findings say more than the error of decoding the section
			}
			_, err = r.prepare(ctx, steps, section.Step)
		}
		if err != nil {
			l.found = append(l.found, r.unrendered(section.Step, err))
		}
	}
	return slices.DeleteFunc(l.found, func(f finding) bool { return slices.Contains(said, f) })
}

// unrendered says why a section could not be evaluated. A template is not at fault where it needs
// another object that lint does not have.
func (r *pavRender) unrendered(step tarnv1.Step, err error) finding {
	f, ok := r.failure(step, err)
	var e *jinja.Error
	switch {
	case !ok:
		return r.manifest.findingAt(levelError, steppod.SectionField(step), nil, fmt.Sprintf("is not evaluated: %v", err))
	case errors.As(err, &e) && e.Kind == jinja.KindLookup:
		f.Level, f.Message = levelNote, "is not evaluated, as it reads another object; give that to tarn pav render with --pvcs"
	}
	return f
}
