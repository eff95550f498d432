package explain

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/cli/terminal"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/suggest"
)

const (
	// mostNames is how many names a message lists, and how many objects of a kind are followed.
	mostNames = 3
	// logLines and logBytes bound the end of a log that is read; lineBytes bounds each line.
	logLines  = 8
	logBytes  = 16 * 1024
	lineBytes = 300
	// logTime is how long a kubelet may take to answer with a log.
	logTime = 5 * time.Second
)

// gatherer fills a View.
type gatherer struct {
	Source
	view *View

	mu sync.Mutex
	// asked caches what more than one part of the view needs.
	asked map[string]func() any
}

// each reads a view of each item in parallel.
func each[T, V any](items []T, read func(T) V) []V {
	views := make([]V, len(items))
	var all sync.WaitGroup
	for i := range items {
		all.Go(func() { views[i] = read(items[i]) })
	}
	all.Wait()
	return views
}

func firstFew[T any](items []T) []T { return items[:min(len(items), mostNames)] }

// once runs read only once for a key, however many callers ask at the same time.
func once[T any](g *gatherer, key string, read func() T) T {
	g.mu.Lock()
	if g.asked == nil {
		g.asked = map[string]func() any{}
	}
	f := g.asked[key]
	if f == nil {
		f = sync.OnceValue(func() any { return read() })
		g.asked[key] = f
	}
	g.mu.Unlock()
	value, _ := f().(T)
	return value
}

// get reads an object. It returns nil if the object does not exist or cannot be read. The latter is
// noted, and the other reads continue.
func get[T client.Object](ctx context.Context, g *gatherer, kind Kind, namespace, name string, into T) T {
	var none T
	o, err := kube.Get(ctx, g.Client, client.ObjectKey{Namespace: namespace, Name: name}, into)
	if err != nil {
		g.missed(Object{kind, namespace, name}, "get", err)
		return none
	}
	return o
}

// list reads a list; it is empty if it cannot be read, which is noted.
func (g *gatherer) list(ctx context.Context, kind Kind, namespace string, into client.ObjectList, options ...client.ListOption) {
	if err := g.Client.List(ctx, into, append(options, client.InNamespace(namespace))...); err != nil {
		g.missed(Object{Kind: kind, Namespace: namespace}, "list", err)
	}
}

// missed notes what could not be read. If the cluster does not have the kind, there are no objects
// of it, so nothing is noted.
func (g *gatherer) missed(o Object, verb string, err error) {
	if meta.IsNoMatchError(errors.Unwrap(err)) || meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if u := (unread{o, Why(verb, err)}); !slices.Contains(g.view.Unread, u) {
		g.view.Unread = append(g.view.Unread, u)
	}
}

// unread says whether an object is missing because it could not be read.
func (g *gatherer) unread(kind Kind, namespace, name string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.view.unknown(kind, namespace, name)
}

// needs is the prefix of the message about a missing right.
const needs = "needs permission"

// Why words the error of a read. For a forbidden read it names the missing right. For a server that
// cannot be reached it says only that. verb is get or list.
func Why(verb string, err error) string {
	var unreached *url.Error
	if errors.As(err, &unreached) {
		return fmt.Sprintf("the API server does not respond: %v", unreached.Err)
	}
	var status apierrors.APIStatus
	if !apierrors.IsForbidden(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return err.Error()
	}
	resource := status.Status().Details.Kind
	if group := status.Status().Details.Group; group != "" {
		resource += "." + group
	}
	return fmt.Sprintf("%s to %s %s", needs, verb, resource)
}

// events returns the Events about an object, newest last. Events about a cluster-wide object are in
// the default namespace.
func (g *gatherer) events(ctx context.Context, about client.Object) []corev1.Event {
	namespace := about.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	var list corev1.EventList
	g.list(ctx, event, namespace, &list, client.MatchingFields{"involvedObject.uid": string(about.GetUID())})
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return LastSeen(&a).Compare(LastSeen(&b)) })
	return list.Items
}

// log reads the last lines of a container, without the control characters of terminals.
func (g *gatherer) log(ctx context.Context, pod *corev1.Pod, container string, previous bool) []string {
	ctx, cancel := context.WithTimeout(ctx, logTime)
	defer cancel()
	text, err := g.Logs.Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: container, Previous: previous, TailLines: ptr.To[int64](logLines), LimitBytes: ptr.To[int64](logBytes),
	}).DoRaw(ctx)
	if err != nil {
		g.missed(Object{podLog, pod.Namespace, pod.Name}, "get", err)
		return nil
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		lines = append(lines, kube.Cut(printable(line), lineBytes))
	}
	return lines
}

// printable strips a line of terminal control characters.
func printable(line string) string {
	return strings.TrimRightFunc(strings.ReplaceAll(terminal.Plain(line), "\t", " "), unicode.IsSpace)
}

// notFound returns an error that the object asked for does not exist, or cannot be read. It also
// names objects with similar names, and a namespace with a similar name if there is none of that
// name.
func (g *gatherer) notFound(ctx context.Context, list client.ObjectList, err error) error {
	asked := g.view.Asked
	if err != nil {
		return fmt.Errorf("cannot read %s: %s", asked, Why("get", err))
	}
	var here, elsewhere []string
	for _, o := range g.named(ctx, list) {
		switch {
		case o.Namespace == asked.Namespace:
			here = append(here, o.Name)
		case o.Name == asked.Name:
			elsewhere = append(elsewhere, o.String())
		}
	}
	hint := ""
	if asked.Namespace != "" && g.noNamespace(ctx, asked.Namespace) {
		hint = ", nor a namespace " + asked.Namespace
		var names []string
		for _, o := range g.named(ctx, &corev1.NamespaceList{}) {
			names = append(names, o.Name)
		}
		if like := suggest.Near(asked.Namespace, names); len(like) > 0 {
			hint += "; did you mean namespace " + strings.Join(like, " or ") + "?"
		}
	}
	if len(elsewhere) > 0 {
		hint += "; there is " + strings.Join(firstFew(elsewhere), ", ")
	} else if names := suggest.Near(asked.Name, here); len(names) > 0 {
		hint = "; did you mean " + strings.Join(names, " or ") + "?"
	}
	return fmt.Errorf("there is no %s%s", asked, hint)
}

// noNamespace says whether a namespace does not exist; false if that cannot be read.
func (g *gatherer) noNamespace(ctx context.Context, name string) bool {
	there, err := kube.Get(ctx, g.Client, client.ObjectKey{Name: name}, &corev1.Namespace{})
	return there == nil && err == nil
}

// named lists the objects of a kind. It lists all namespaces, or only the one asked for if the
// caller may not list all.
func (g *gatherer) named(ctx context.Context, list client.ObjectList) []Object {
	asked := g.view.Asked
	if g.Client.List(ctx, list) != nil && g.Client.List(ctx, list, client.InNamespace(asked.Namespace)) != nil {
		return nil // the names are only a help; the answer is that the object does not exist
	}
	var found []Object
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		if o, ok := item.(client.Object); ok {
			found = append(found, Object{asked.Kind, o.GetNamespace(), o.GetName()})
		}
		return nil
	})
	return found
}
