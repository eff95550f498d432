package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/jinja"
)

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
