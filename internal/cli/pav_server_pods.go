package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
)

// checkPods returns the API server's objections to the pods of the sections. Each pod is made for a
// sample, and for a made-up volume and node. Nothing is created.
func (s *lintServer) checkPods(ctx context.Context, p *pavv1.PavProvisioner, m *manifest, of sample) findings {
	var found findings
	told := map[string]bool{} // namespaces in which the caller may not create pods
	for _, section := range steppod.Sections(p) {
		at := steppod.JoinField(section.Field, steppod.PodField(section.Step))
		note := func(format string, args ...any) {
			found = append(found, m.findingAt(levelNote, at, nil, fmt.Sprintf(format, args...)))
		}
		pod, err := samplePod(ctx, p, m, section, of)
		if err != nil {
			note("the API server did not check its pod, as the made-up claim does not give one: %v; give your own with --claim and --class", err)
			continue
		}
		if pod == nil {
			continue
		}
		if allowed, err := s.mayCreatePods(ctx, pod.Namespace); err != nil || !allowed {
			if !told[pod.Namespace] {
				note("the API server did not check the pods in namespace %q, %s", pod.Namespace, whyNot(err))
			}
			told[pod.Namespace] = true
			continue
		}
		found = append(found, podFindings(m, at, pod.Namespace, s.unanswered(), s.client.Create(ctx, pod, client.DryRunAll))...)
	}
	return found
}

// whyNot says why no pod was tried.
func whyNot(err error) string {
	if err != nil {
		return "as it did not say whether you may create them: " + err.Error()
	}
	return "in which you may not create any"
}

// mayCreatePods asks whether the caller may create pods in a namespace. A dry run needs that right
// too.
func (s *lintServer) mayCreatePods(ctx context.Context, namespace string) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Resource: "pods"},
	}}
	err := s.client.Create(ctx, review)
	return review.Status.Allowed, err
}

// podFindings words the API server's answer to the pod of the section at a path. A pod that is
// never valid is an error. A pod that the namespace rejects as it is now is a warning. If there is
// no answer, the level is unanswered.
func podFindings(m *manifest, at, namespace string, unanswered level, err error) findings {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return findings{m.findingAt(levelNote, at, nil, fmt.Sprintf("the API server did not check its pod: there is no namespace %q yet", namespace))}
	case !errors.As(err, &status):
		return findings{m.findingAt(unanswered, at, nil, "the API server did not check its pod: "+err.Error())}
	case apierrors.IsForbidden(err), deniedByWebhook(err):
		return findings{m.findingAt(levelWarning, at, nil, fmt.Sprintf("the API server rejects its pod in namespace %q: %v", namespace, err))}
	case !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err): // it is busy, or what it asks is down
		return findings{m.findingAt(unanswered, at, nil, "the API server did not check its pod: "+err.Error())}
	}
	var found findings
	if details := status.Status().Details; details != nil {
		for _, cause := range details.Causes {
			if cause.Field != "" {
				found = append(found, m.findingAt(levelError, at+"."+cause.Field, nil, "the API server rejects it: "+cause.Message))
			}
		}
	}
	if len(found) == 0 {
		found = findings{m.findingAt(levelError, at, nil, "the API server rejects its pod: "+err.Error())}
	}
	return found
}

// deniedByWebhook says whether an admission webhook rejected the pod. Webhooks may answer with any
// status.
func deniedByWebhook(err error) bool {
	return strings.Contains(err.Error(), "admission webhook") && strings.Contains(err.Error(), "denied the request")
}

// samplePod returns the pod of a section for a sample, nil where the section has none. It lacks the
// fields that only Tarn's controller may set.
func samplePod(ctx context.Context, p *pavv1.PavProvisioner, m *manifest, section steppod.Section, of sample) (*corev1.Pod, error) {
	r, err := of.rendering(p, m, section)
	if err != nil {
		return nil, err
	}
	steps := &steppod.Steps{Reader: &fileObjects{}, StateDir: tarnv1.DefaultStateDir, Namespaces: steppod.Namespaces{tarnv1.StepNamespace, "*"}}
	prepared, err := r.prepare(ctx, steps, section.Step)
	if err != nil || prepared.Pod == nil {
		return nil, err
	}
	pod := prepared.Pod
	pod.OwnerReferences = nil
	for _, marks := range []map[string]string{pod.Labels, pod.Annotations} {
		for key := range marks {
			if strings.HasPrefix(key, tarnv1.Group+"/") {
				delete(marks, key)
			}
		}
	}
	return pod, nil
}

// firstMethod returns a recycle method that the section has.
func firstMethod(section steppod.Section) string {
	object, _ := section.Object.(fields)
	methods, _ := object["methods"].([]any)
	if len(methods) == 0 {
		return string(tarnv1.RecycleFiles)
	}
	return fmt.Sprint(methods[0])
}
