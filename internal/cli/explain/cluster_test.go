package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"tarn.dev/tarn/internal/kube"
)

// failure is a read that the API server rejects. Empty fields stand for all.
type failure struct {
	// Verb is get or list. Resource has its group: pavvolumes.tarn.dev.
	Verb      string `json:"verb"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Message is the error's text; without it the caller lacks the right.
	Message string `json:"message"`
}

// cluster answers reads as an API server does that has exactly these objects.
type cluster struct {
	objects []*unstructured.Unstructured
	fails   []failure
	texts   map[string]string
}

// scheme knows the kinds of the objects.
var scheme = kube.Scheme()

// newCluster checks that each object is one of its kind.
func newCluster(objects []map[string]any, fails []failure, logs map[string]string) (*cluster, error) {
	c := &cluster{fails: fails, texts: logs}
	for _, object := range objects {
		o := &unstructured.Unstructured{Object: object}
		typed, err := scheme.New(o.GroupVersionKind())
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, typed, true)
		}
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
		}
		c.objects = append(c.objects, o)
	}
	slices.SortFunc(c.objects, func(a, b *unstructured.Unstructured) int { // as an API server lists them
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return c, nil
}

func (c *cluster) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	kind, resource, err := kindOf(into)
	if err != nil {
		return err
	}
	if err := c.rejects("get", resource, key.Namespace, key.Name); err != nil {
		return err
	}
	for _, o := range c.objects {
		if o.GroupVersionKind() == kind && client.ObjectKeyFromObject(o) == key {
			return runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into)
		}
	}
	return apierrors.NewNotFound(resource, key.Name)
}

func (c *cluster) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	kind, resource, err := kindOf(into)
	if err != nil {
		return err
	}
	var by client.ListOptions
	by.ApplyOptions(options)
	if err := c.rejects("list", resource, by.Namespace, ""); err != nil {
		return err
	}
	items := []any{}
	for _, o := range c.objects {
		if o.GroupVersionKind() == kind && (by.Namespace == "" || o.GetNamespace() == by.Namespace) &&
			(by.LabelSelector == nil || by.LabelSelector.Matches(labels.Set(o.GetLabels()))) &&
			(by.FieldSelector == nil || by.FieldSelector.Matches(fieldsOf{o})) {
			items = append(items, o.Object)
		}
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(map[string]any{"items": items}, into)
}

// kindOf returns the kind of an object, or of a list's items.
func kindOf(o runtime.Object) (schema.GroupVersionKind, schema.GroupResource, error) {
	kind, err := apiutil.GVKForObject(o, scheme)
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	plural, _ := meta.UnsafeGuessKindToResource(kind)
	return kind, plural.GroupResource(), err
}

// fieldsOf are the fields of an object, for a selector.
type fieldsOf struct{ *unstructured.Unstructured }

var _ fields.Fields = fieldsOf{}

func (f fieldsOf) Has(path string) bool { return f.Get(path) != "" }

func (f fieldsOf) Get(path string) string {
	text, _, _ := unstructured.NestedString(f.Object, strings.Split(path, ".")...)
	return text
}

// rejects returns the error of a read that the caller may not do, or that fails.
func (c *cluster) rejects(verb string, resource schema.GroupResource, namespace, name string) error {
	matches := func(want, is string) bool { return want == "" || want == is }
	for _, f := range c.fails {
		switch {
		case !matches(f.Verb, verb), !matches(f.Resource, resource.String()), !matches(f.Namespace, namespace), !matches(f.Name, name):
		case f.Message != "":
			return apierrors.NewInternalError(fmt.Errorf("%s", f.Message))
		default:
			return apierrors.NewForbidden(resource, name, nil)
		}
	}
	return nil
}

// logs reads the pods' logs.
func (c *cluster) logs() corev1client.PodsGetter {
	config := &rest.Config{Host: "http://recorded.invalid", QPS: -1, Transport: c}
	return kubernetes.NewForConfigOrDie(config).CoreV1()
}

// RoundTrip answers a request for a pod's log.
func (c *cluster) RoundTrip(r *http.Request) (*http.Response, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // api v1 namespaces NAMESPACE pods POD log
	namespace, pod := parts[3], parts[5]
	text, there := c.texts[namespace+"/"+pod+"/"+r.URL.Query().Get("container")]
	status := http.StatusOK
	err := c.rejects("get", schema.GroupResource{Resource: "pods/log"}, namespace, pod)
	if err == nil && !there {
		err = apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, pod)
	}
	header := http.Header{"Content-Type": {"text/plain"}}
	if err != nil {
		reason := err.(apierrors.APIStatus).Status()
		reason.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		data, _ := json.Marshal(reason)
		text, status = string(data), int(reason.Code)
		header.Set("Content-Type", "application/json")
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}
