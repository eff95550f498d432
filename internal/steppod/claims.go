package steppod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kjson "sigs.k8s.io/json"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/jinja"
)

const (
	// varClaims maps each name in spec.claims to the claim that was made for the volume.
	varClaims = "claims"
	// claimsField is where a provisioner declares claims.
	claimsField = "spec.claims"
	// maxDepth limits how many volumes may lie over a claim. More means that a class backs itself.
	maxDepth = 8
)

// claimFields are the fields of spec in the template of a claim. Those that are missing would let a
// template choose whose data it gets.
var claimFields = []string{"accessModes", "resources", "storageClassName", "volumeAttributesClassName", "volumeMode"}

// ClaimName is the name of the claim that is made for a volume under a name in spec.claims.
func ClaimName(volumeName, name string) string { return volumeName + "-" + name }

// OwnsClaim says whether a claim was made for a record.
func OwnsClaim(record *tarnv1.PavVolume, claim *corev1.PersistentVolumeClaim) bool {
	return claim.Labels[tarnv1.LabelRecord] == string(record.UID)
}

// addClaims adds varClaims to the context of a step. A validation precedes the claims.
func addClaims(vars map[string]any, step tarnv1.Step, p *pavv1.PavProvisioner, volumeName string) {
	if step == tarnv1.StepValidation {
		return
	}
	names := map[string]any{}
	for _, c := range p.Spec.Claims {
		names[c.Name] = ClaimName(volumeName, c.Name)
	}
	vars[varClaims] = names
}

// PrepareClaims evaluates spec.claims: the claims to be made for a volume. newCapacity is the size
// that the volume must grow to, 0 for a volume that is being created.
func (s *Steps) PrepareClaims(ctx context.Context, p *pavv1.PavProvisioner, record *tarnv1.PavVolume, claim *corev1.PersistentVolumeClaim, newCapacity int64) ([]*corev1.PersistentVolumeClaim, error) {
	if len(p.Spec.Claims) == 0 {
		return nil, nil
	}
	step := tarnv1.StepCreation
	vars, err := RecordVars(record, claim)
	if newCapacity > 0 {
		step = tarnv1.StepExpansion
		vars, err = ExpansionVars(record, claim, newCapacity)
	}
	if err != nil {
		return nil, err
	}
	live := &lookups{reader: s.Reader, provisioner: p, own: record.Spec.Claim.Namespace}
	live.addTo(vars)
	addClaims(vars, step, p, record.Name)
	depth, err := depthOf(record)
	if err != nil {
		return nil, failed(step, ReasonInvalid, "%v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, evaluationTime)
	defer cancel()
	var made []*corev1.PersistentVolumeClaim
	for i, c := range p.Spec.Claims {
		field := claimField(i)
		object, err := decodeRaw(c.Template)
		if err != nil {
			return nil, failed(step, ReasonInvalid, "%s: %v", field, err)
		}
		value, err := evaluateLiterally(ctx, object, vars, s.Limits)
		if err != nil && live.transient != nil {
			return nil, fmt.Errorf("evaluating %s: %w", field, live.transient)
		}
		if err != nil {
			return nil, failed(step, ReasonTemplate, "%s", templateMessage(field, err))
		}
		t, err := decodeClaim(field, value)
		if err != nil {
			return nil, failed(step, ReasonInvalid, "%v", err)
		}
		made = append(made, s.newClaim(p, record, c.Name, t, max(newCapacity, record.Spec.RequestedMinCapacity), depth))
	}
	return made, nil
}

// Home is the namespace of claims that are made for volumes, and of pods whose template names none.
func (s *Steps) Home() string { return s.Namespaces.orDefault()[0] }

func claimField(i int) string { return fmt.Sprintf("%s[%d].template", claimsField, i) }

// depthOf is how many volumes will lie over the claims of a record.
func depthOf(record *tarnv1.PavVolume) (int, error) {
	claim := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(record.Spec.ClaimSnapshot.Raw, claim); err != nil {
		return 0, fmt.Errorf("reading claimSnapshot of PavVolume %s: %w", record.Name, err)
	}
	depth, _ := strconv.Atoi(claim.Annotations[tarnv1.AnnotationDepth])
	if depth = max(depth, 0) + 1; depth > maxDepth {
		return 0, fmt.Errorf("%s: more than %d volumes lie over one another; name a StorageClass that is not backed by itself", claimsField, maxDepth)
	}
	return depth, nil
}

// claimTemplate is the evaluated template of a claim.
type claimTemplate struct {
	Metadata metav1.ObjectMeta                `json:"metadata"`
	Spec     corev1.PersistentVolumeClaimSpec `json:"spec"`
}

// decodeClaim decodes an evaluated template of a claim, and rejects unknown fields.
func decodeClaim(field string, value any) (*claimTemplate, error) {
	if problems := checkClaimTemplate(field, value, false); len(problems) > 0 {
		return nil, errors.New(problems[0].String())
	}
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	t := &claimTemplate{}
	strict, err := kjson.UnmarshalStrict(data, t)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", field, strings.TrimPrefix(err.Error(), "json: "))
	}
	if len(strict) > 0 {
		return nil, fmt.Errorf("%s: %w", field, errors.Join(strict...))
	}
	return t, nil
}

// newClaim builds the claim of a template. Its label keeps it from being deleted with its data.
func (s *Steps) newClaim(p *pavv1.PavProvisioner, record *tarnv1.PavVolume, name string, t *claimTemplate, bytes int64, depth int) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Home(), Name: ClaimName(record.Name, name), Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec:       t.Spec,
	}
	for key, value := range t.Metadata.Labels {
		if !isOurs(key) {
			claim.Labels[key] = value
		}
	}
	for key, value := range t.Metadata.Annotations {
		if !isOurs(key) {
			claim.Annotations[key] = value
		}
	}
	claim.Labels[tarnv1.LabelProvisioner] = p.Name
	claim.Labels[tarnv1.LabelVolume] = tarnv1.VolumeLabel(record.Name)
	claim.Labels[tarnv1.LabelRecord] = string(record.UID)
	claim.Labels[tarnv1.LabelDeletionProtection] = "true"
	claim.Annotations[tarnv1.AnnotationDepth] = strconv.Itoa(depth)
	if len(claim.Spec.AccessModes) == 0 {
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	if _, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]; !ok {
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
	}
	if ptr.Deref(claim.Spec.StorageClassName, "") == "" {
		claim.Spec.StorageClassName = nil // the default class
	}
	return claim
}

// checkClaims gives what is wrong with spec.claims as written.
func checkClaims(p *pavv1.PavProvisioner) []Problem {
	var problems []Problem
	if len(p.Spec.Claims) == 0 {
		if p.Spec.Topology == pavv1.TopologyClaims {
			problems = append(problems, Problem{Field: "spec.topology", Message: "is Claims, but there are no claims; declare them in spec.claims, or set Cluster or Node"})
		}
		return problems
	}
	if !slices.Contains(p.Spec.ProvisioningModes, pavv1.ModeDynamic) {
		problems = append(problems, Problem{Field: claimsField, Message: "needs Dynamic in spec.provisioningModes; add it or remove the field"})
	}
	if !hasPod(p, tarnv1.StepCreation) {
		problems = append(problems, Problem{Field: "spec.volumeCreation.podTemplate", Message: "is missing: the creation pod mounts the claims of spec.claims, which binds them"})
	}
	for i, c := range p.Spec.Claims {
		field := claimField(i)
		object, err := decodeRaw(c.Template)
		if err != nil {
			problems = append(problems, Problem{Field: field, Message: err.Error()})
			continue
		}
		problems = append(problems, checkClaimTemplate(field, object, true)...)
		for _, e := range jinja.Check(object) {
			problems = append(problems, Problem{Field: joinPath(field, e.Path), Line: e.Line, Column: e.Column, Message: e.Message})
		}
	}
	return problems
}

// checkClaimTemplate gives what is wrong with the template of a claim; templates says that a string
// may stand for anything.
func checkClaimTemplate(field string, value any, templates bool) []Problem {
	if _, isText := value.(string); isText && templates || value == nil {
		return nil
	}
	fields, ok := value.(map[string]any)
	if !ok {
		return []Problem{{Field: field, Message: "must be a mapping or a template, not " + kindOf(value)}}
	}
	var problems []Problem
	wrong := func(path, message string) { problems = append(problems, Problem{Field: path, Message: message}) }
	for _, key := range sortedKeys(fields) {
		known, isKnown := claimTemplateFields[key]
		inner, isMapping := fields[key].(map[string]any)
		_, isText := fields[key].(string)
		switch {
		case !isKnown:
			wrong(field+"."+key, "unknown field; the template of a claim has metadata and spec")
			continue
		case isMapping:
			CheckType(field+"."+key, known.of, inner, templates, wrong)
		case !isText || !templates:
			wrong(field+"."+key, "must be a mapping or a template, not "+kindOf(fields[key]))
		}
		for _, name := range sortedKeys(inner) {
			if !slices.Contains(known.may, name) {
				wrong(field+"."+key+"."+name, "may not be set for the claim of a volume; known are "+strings.Join(known.may, ", "))
			}
		}
	}
	return problems
}

// claimTemplateFields are the fields of the template of a claim, each with its type and the fields
// that it may have.
var claimTemplateFields = map[string]struct {
	of  reflect.Type
	may []string
}{
	"metadata": {reflect.TypeFor[metav1.ObjectMeta](), []string{"annotations", "labels"}},
	"spec":     {reflect.TypeFor[corev1.PersistentVolumeClaimSpec](), claimFields},
}

// Unbound adds to an observation why a claim that was made for the volume is not bound, so that the
// pod that mounts it does not start. It reads the claim's Events, the last Warning among them.
func (s *Steps) Unbound(ctx context.Context, pod *corev1.Pod, claims []*corev1.PersistentVolumeClaim, o Observation, now time.Time) (Observation, error) {
	if s.EventsOf == nil || pod == nil || o.State != PodStarting || pod.Spec.NodeName != "" {
		return o, nil
	}
	i := slices.IndexFunc(claims, func(c *corev1.PersistentVolumeClaim) bool { return c.Status.Phase != corev1.ClaimBound })
	if i < 0 {
		return o, nil
	}
	begin := pod.CreationTimestamp.Add(firstUnmounted)
	if now.Before(begin) { // the scheduler's first word is that the new claim is not bound
		o.Message, o.waits, o.CheckAt = "", "", kube.Sooner(o.CheckAt, begin)
		return o, nil
	}
	events, err := s.EventsOf(ctx, claims[i])
	if err != nil {
		return o, err
	}
	var last *corev1.Event
	for i := range events {
		if e := &events[i]; e.Type == corev1.EventTypeWarning && (last == nil || lastSeen(e).After(lastSeen(last))) {
			last = e
		}
	}
	pause := nextUnmounted
	if last != nil {
		pause = laterUnmounted
		o.Message = fmt.Sprintf("claim %s/%s, which was made for the volume, is not bound: %s: %s", claims[i].Namespace, claims[i].Name, last.Reason, last.Message)
		o.waits = "BackingClaim"
	}
	o.CheckAt = kube.Sooner(o.CheckAt, now.Add(pause))
	return o, nil
}
