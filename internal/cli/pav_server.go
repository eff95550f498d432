package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

// answerTime is how long a server may take to answer if the user has not asked for it.
const answerTime = 5 * time.Second

// lintServer has an API server check provisioners.
type lintServer struct {
	client client.Client
	// offered says that the user has not asked for this server. Then it is no finding if it does
	// not know a resource, or does not let the caller ask.
	offered bool
}

// reach returns the API server that checks too, nil where there is none. It prints the reason to
// standard error.
func (l *pavLint) reach(cmd *cobra.Command) (*lintServer, error) {
	switch l.server {
	case serverNever, "false": // as for a boolean flag
		return nil, nil
	case serverAlways, "true":
		server, err := newLintServer(l.connection, 0)
		if err != nil {
			return nil, fmt.Errorf("--server: %w", err)
		}
		return server, nil
	case serverAuto:
	default:
		return nil, fmt.Errorf("--server %q is unknown; give %s, %s or %s", l.server, serverAuto, serverAlways, serverNever)
	}
	config, err := l.connection.config()
	if err != nil {
		if l.connection != (connection{}) || !clientcmd.IsEmptyConfig(errors.Unwrap(err)) { // a cluster was named
			return nil, err
		}
		cmd.PrintErrln("note: no API server checked this, as no kubeconfig names one")
		return nil, nil
	}
	config.Timeout = answerTime
	asked, err := discovery.NewDiscoveryClientForConfig(config)
	if err == nil {
		_, err = asked.ServerVersion()
	}
	if err != nil {
		cmd.PrintErrf("note: no API server checked this; the request to %s failed: %v\n", config.Host, err)
		return nil, nil
	}
	server, err := newLintServer(l.connection, answerTime)
	if err != nil {
		return nil, err
	}
	server.offered = true
	cmd.PrintErrf("note: the API server %s checks this too; --server=never skips that\n", config.Host)
	return server, nil
}

// newLintServer returns a client of the API server. If the server is down, only the first check
// fails. The time limit for one answer is each; 0 means no limit.
func newLintServer(to connection, each time.Duration) (*lintServer, error) {
	config, err := to.config()
	if err != nil {
		return nil, err
	}
	config.Timeout = each
	c, err := client.New(config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return nil, fmt.Errorf("reaching the API server: %w", err)
	}
	// Unknown fields are rejected, as by kubectl.
	return &lintServer{client: client.WithFieldValidation(c, "Strict")}, nil
}

// check returns the API server's objections to the provisioner, in its own words. A provisioner
// that exists already is checked as an update.
func (s *lintServer) check(ctx context.Context, m *manifest) findings {
	o := m.unstructured()
	err := s.client.Create(ctx, o, client.DryRunAll)
	if apierrors.IsAlreadyExists(err) {
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(o.GroupVersionKind())
		if err = s.client.Get(ctx, client.ObjectKeyFromObject(o), live); err == nil {
			o.SetResourceVersion(live.GetResourceVersion())
			err = s.client.Update(ctx, o, client.DryRunAll)
		}
	}
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err):
		return findings{m.findingAt(s.unanswered(), "", nil, "the API server has no resource PavProvisioner; run tarn install")}
	case errors.As(err, &status) && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) && !deniedByWebhook(err) || !s.offered):
		return findings{m.findingAt(levelError, "", nil, "the API server rejects it: "+err.Error())}
	}
	return findings{m.findingAt(s.unanswered(), "", nil, "the API server did not check it: "+err.Error())}
}

// unanswered returns the level of a check that the API server did not make.
func (s *lintServer) unanswered() level {
	if s.offered {
		return levelNote
	}
	return levelError
}

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
