package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// Source is a paas.toml as it was sent.
type Source struct {
	Text []byte
	// JSON says that the text is JSON rather than TOML.
	JSON bool
}

// Read parses the source for the application with an id. The error lists every problem with its
// place.
func (s Source) Read(id string) (f *appspec.File, warnings []string, err *Error) {
	parse := appspec.ParseTOML
	if s.JSON {
		parse = appspec.ParseJSON
	}
	f, told, failed := parse(id, s.Text)
	if failed != nil {
		var problems appspec.Problems
		if !errors.As(failed, &problems) {
			problems = appspec.Problems{{Message: failed.Error()}}
		}
		return nil, nil, badFile(problems)
	}
	for _, warning := range told {
		warnings = append(warnings, warning.String())
	}
	return f, warnings, nil
}

// Decision is what a deploy would do.
type Decision struct {
	Plan Plan
	// Spec is the new spec of the application.
	Spec tarnv1.AppSpec
	// Refusal is why the deploy is rejected, nil if it is not.
	Refusal *Error
}

// Deploy decides what deploying a file does. warnings are those of the file.
func Deploy(w World, f *appspec.File, warnings []string) Decision {
	d := decider{w: w, replicas: f.App.Replicas, plan: Plan{
		ID: w.App.Name, Changes: []Change{}, Replicas: f.App.Replicas, Strategy: RollingUpdate, Warnings: append([]string{}, warnings...),
	}}
	spec := tarnv1.AppSpec{
		Image: f.App.Image, Command: f.App.Command, Args: f.App.Args, Port: f.App.Port, Env: f.App.Env, Secrets: retyped[tarnv1.SecretKey](f.App.Secrets), Replicas: &f.App.Replicas,
	}
	for _, v := range f.Volumes {
		spec.Volumes = append(spec.Volumes, d.volume(tarnv1.AppVolume{
			Name: v.Name, MountPath: v.MountPath, SizeGi: v.SizeGi, AccessMode: longMode(v.AccessMode),
			StorageClass: v.StorageClass, PreserveOnDelete: v.PreserveOnDelete,
		}))
	}
	d.detached(&spec)
	d.plan.Restart = w.App.Spec.Image != "" && !samePods(&w.App.Spec, &spec)
	d.plan.Refused = len(d.refusals) > 0
	return Decision{Plan: d.plan, Spec: spec, Refusal: together(d.refusals)}
}

// retyped converts the values of a map to another string type.
func retyped[To, From ~string](texts map[string]From) map[string]To {
	if texts == nil {
		return nil
	}
	typed := make(map[string]To, len(texts))
	for name, text := range texts {
		typed[name] = To(text)
	}
	return typed
}

// Same says whether two specs ask for the same.
func Same(a, b *tarnv1.AppSpec) bool { return apiequality.Semantic.DeepEqual(a, b) }

// samePods says whether two specs create the same pods.
func samePods(a, b *tarnv1.AppSpec) bool {
	return a.Image == b.Image && slices.Equal(a.Command, b.Command) && slices.Equal(a.Args, b.Args) && a.Port == b.Port &&
		apiequality.Semantic.DeepEqual(a.Env, b.Env) && apiequality.Semantic.DeepEqual(a.Secrets, b.Secrets) &&
		slices.EqualFunc(a.Volumes, b.Volumes, func(x, y tarnv1.AppVolume) bool { return x.Name == y.Name && x.MountPath == y.MountPath })
}

// decider decides on the volumes of a file, one by one.
type decider struct {
	w        World
	replicas int32
	plan     Plan
	refusals []*Error
}

func (d *decider) refuse(change Change, err *Error) {
	change.Action, change.Message = Refuse, err.Message
	d.plan.Changes = append(d.plan.Changes, change)
	d.refusals = append(d.refusals, err)
}

func (d *decider) warn(format string, args ...any) {
	d.plan.Warnings = append(d.plan.Warnings, fmt.Sprintf(format, args...))
}

// volume decides what happens to one volume, and returns it for the new spec. A larger size that
// was requested before stays, because volumes never shrink. It is dropped only if the application
// was refused, for instance by a quota.
func (d *decider) volume(v tarnv1.AppVolume) tarnv1.AppVolume {
	change := Change{Volume: v.Name, ClaimName: appspec.ClaimName(d.w.App.Name, v.Name), ToGi: v.SizeGi}
	claim, ours := d.w.claim(v.Name)
	live := v.AccessMode
	if ours {
		live = ModeOf(claim)
	}
	if before := d.w.wanted(v.Name); before != nil && before.SizeGi > v.SizeGi && !d.w.refused() {
		v.SizeGi = before.SizeGi
	}
	switch {
	case claim != nil && !ours:
		d.refuse(change, Errorf(Conflict, "volume '%s' cannot be created: claim '%s' exists and does not belong to app '%s'; give the volume another name", v.Name, claim.Name, d.w.App.Name))
	case claim != nil && !claim.DeletionTimestamp.IsZero():
		d.refuse(change, Errorf(Conflict, "volume '%s' is being deleted once no pod uses it: scale the app to 0, then deploy again", v.Name))
	case Single(live) && d.replicas > 1:
		d.refuse(change, cannotScale(d.replicas, v.Name, live))
	case claim == nil:
		d.create(change, v)
	default:
		v = d.attach(change, v, claim)
	}
	if Single(live) && d.plan.Strategy != Recreate {
		d.plan.Strategy = Recreate
		d.warn("volume '%s' is %s, so the running pod is stopped before a new one starts (strategy Recreate)", v.Name, live)
	}
	return v
}

func (d *decider) create(change Change, v tarnv1.AppVolume) {
	class := d.w.ClassName(v)
	if d.w.Classes[class] == nil && !d.w.Hidden[class] {
		d.warn("volume '%s' waits for storage class '%s', which does not exist", v.Name, class)
	}
	change.Action, change.Message = Create, fmt.Sprintf("%s, by storage class '%s'", cmp.Or(v.AccessMode, corev1.ReadWriteOnce), class)
	change.ToGi = v.SizeGi
	d.plan.Changes = append(d.plan.Changes, change)
}

// attach decides about an existing claim.
func (d *decider) attach(change Change, v tarnv1.AppVolume, claim *corev1.PersistentVolumeClaim) tarnv1.AppVolume {
	asked := change.ToGi
	now := inGi(current(claim))
	change.FromGi, change.ToGi = now, max(now, v.SizeGi)
	change.Action = Keep
	if d.w.wanted(v.Name) == nil {
		change.Action, change.Message = Attach, "a volume that was kept is mounted again"
	}
	// A volume may be larger than requested, as a spare of a pool may be. The spec must not request
	// that size, because that would change the claim.
	if kept := max(v.SizeGi, inGi(requested(claim))); asked < kept {
		d.warn("volume '%s' keeps its %d GiB: the file asks for %d, and volumes never shrink", v.Name, kept, asked)
	}
	v.SizeGi = max(v.SizeGi, min(requested(claim)/gi, appspec.MaxSizeGi))
	if live := ModeOf(claim); live != v.AccessMode {
		d.warn("volume '%s' stays %s: a claim's access mode cannot be changed; for %s give the volume another name", v.Name, live, v.AccessMode)
	}
	if live := ClassOf(claim); v.StorageClass != "" && live != v.StorageClass {
		d.warn("volume '%s' stays in storage class '%s': a claim's class cannot be changed; for '%s' give the volume another name", v.Name, live, v.StorageClass)
	}
	if preserved(claim) && !v.PreserveOnDelete {
		d.warn("volume '%s' was preserved until now; from now on it is deleted with the app, because the file lacks preserveOnDelete = true", v.Name)
	}
	if v.SizeGi*gi > current(claim) {
		if err := d.w.Expandable(claim, v.Name); err != nil {
			d.refuse(change, err)
			return v
		}
		change.Action = Grow
	}
	d.plan.Changes = append(d.plan.Changes, change)
	return v
}

// detached adds the volumes that the spec no longer has.
func (d *decider) detached(spec *tarnv1.AppSpec) {
	for _, v := range d.w.App.Spec.Volumes {
		if slices.ContainsFunc(spec.Volumes, func(w tarnv1.AppVolume) bool { return w.Name == v.Name }) {
			continue
		}
		change := Change{Action: Detach, Volume: v.Name, ClaimName: appspec.ClaimName(d.w.App.Name, v.Name), Message: "its claim is kept until the application is deleted"}
		if claim, ours := d.w.claim(v.Name); ours {
			change.FromGi = inGi(current(claim))
			change.ToGi = change.FromGi
		}
		d.plan.Changes = append(d.plan.Changes, change)
	}
}
