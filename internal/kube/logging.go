package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// loggingClient logs each accepted write in one line. A search of the log for the name of a volume,
// or for the UID of its claim, so shows the life of the volume. A failed write is not logged here:
// the caller logs the returned error.
type loggingClient struct{ client.Client }

// logging makes the writes of a manager's client logged.
func logging(newClient client.NewClientFunc) client.NewClientFunc {
	if newClient == nil {
		newClient = client.New
	}
	return func(config *rest.Config, options client.Options) (client.Client, error) {
		c, err := newClient(config, options)
		return loggingClient{c}, err
	}
}

func (c loggingClient) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	begun := time.Now()
	err := c.Client.Create(ctx, o, options...)
	return c.logged(ctx, err, "create", o, begun)
}

func (c loggingClient) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	begun := time.Now()
	err := c.Client.Update(ctx, o, options...)
	return c.logged(ctx, err, "update", o, begun)
}

func (c loggingClient) Patch(ctx context.Context, o client.Object, patch client.Patch, options ...client.PatchOption) error {
	changed := changes(o, patch)
	begun := time.Now()
	err := c.Client.Patch(ctx, o, patch, options...)
	return c.logged(ctx, err, "patch", o, begun, "changed", changed)
}

func (c loggingClient) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	begun := time.Now()
	err := c.Client.Delete(ctx, o, options...)
	return c.logged(ctx, err, "delete", o, begun)
}

func (c loggingClient) Status() client.SubResourceWriter { return c.SubResource("status") }

// SubResource logs the writes of a subresource as "create eviction", for example.
func (c loggingClient) SubResource(name string) client.SubResourceClient {
	return loggingSubResource{c.Client.SubResource(name), c, name}
}

type loggingSubResource struct {
	client.SubResourceClient
	client loggingClient
	name   string
}

func (s loggingSubResource) Create(ctx context.Context, o, sub client.Object, options ...client.SubResourceCreateOption) error {
	begun := time.Now()
	err := s.SubResourceClient.Create(ctx, o, sub, options...)
	return s.client.logged(ctx, err, "create "+s.name, o, begun)
}

func (s loggingSubResource) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	begun := time.Now()
	err := s.SubResourceClient.Update(ctx, o, options...)
	return s.client.logged(ctx, err, "update "+s.name, o, begun, stateOf(o)...)
}

func (s loggingSubResource) Patch(ctx context.Context, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
	begun := time.Now()
	err := s.SubResourceClient.Patch(ctx, o, patch, options...)
	return s.client.logged(ctx, err, "patch "+s.name, o, begun, stateOf(o)...)
}

func (c loggingClient) logged(ctx context.Context, err error, action string, o client.Object, begun time.Time, more ...any) error {
	if err != nil {
		return err
	}
	if logger := log.FromContext(ctx); logger.Enabled() {
		logger.Info(action, append(c.named(o), append(more, "took", time.Since(begun).Round(time.Millisecond).String())...)...)
	}
	return nil
}

// named gives the key-value pairs that name an object, its owner and its volume. The volume's name
// contains the UID of its claim.
func (c loggingClient) named(o client.Object) []any {
	kind := fmt.Sprintf("%T", o)
	if gvk, err := c.GroupVersionKindFor(o); err == nil {
		kind = gvk.Kind
	}
	pairs := []any{"kind", kind, "object", strings.TrimPrefix(client.ObjectKeyFromObject(o).String(), "/"), "uid", o.GetUID()}
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		pairs = append(pairs, "owner", owner.Kind+" "+owner.Name)
	}
	volume := o.GetLabels()[tarnv1.LabelVolume]
	if stage, ok := o.(*tarnv1.PavStage); ok {
		volume = stage.Spec.VolumeName
	}
	if volume != "" {
		pairs = append(pairs, "volume", volume)
	}
	return pairs
}

// changes names the fields that a merge patch changes, such as metadata.finalizers.
func changes(o client.Object, patch client.Patch) []string {
	var fields map[string]any
	if data, err := patch.Data(o); err != nil || json.Unmarshal(data, &fields) != nil {
		return nil
	}
	var changed []string
	for _, top := range slices.Sorted(maps.Keys(fields)) {
		below, _ := fields[top].(map[string]any)
		for _, field := range slices.Sorted(maps.Keys(below)) {
			switch keys, several := below[field].(map[string]any); {
			case top == "metadata" && (field == "resourceVersion" || field == "uid"): // the precondition
			case several && top == "metadata":
				for _, key := range slices.Sorted(maps.Keys(keys)) {
					changed = append(changed, top+"."+field+"."+key)
				}
			default:
				changed = append(changed, top+"."+field)
			}
		}
	}
	return changed
}

// stateOf gives the phase and the conditions of an object as key-value pairs. They show what its
// controller waits for.
func stateOf(o client.Object) []any {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil
	}
	var pairs []any
	status, _ := fields["status"].(map[string]any)
	for _, part := range []string{"", "pod", "node"} { // the parts of a stage have a phase each
		below, name := status, "phase"
		if part != "" {
			below, _ = status[part].(map[string]any)
			name = part + "Phase"
		}
		if phase, ok := below["phase"].(string); ok && phase != "" {
			pairs = append(pairs, name, phase)
		}
		conditions, _ := below["conditions"].([]any)
		for _, one := range conditions {
			c, ok := one.(map[string]any)
			if !ok {
				continue
			}
			text := fmt.Sprint(c["status"], " ", c["reason"])
			if message, _ := c["message"].(string); message != "" {
				text += ": " + message
			}
			pairs = append(pairs, fmt.Sprint(c["type"]), text)
		}
	}
	return pairs
}

// loggingManager logs the Events of its controllers.
type loggingManager struct{ ctrl.Manager }

func (m loggingManager) GetEventRecorder(name string) events.EventRecorder {
	return loggingRecorder{m.Manager.GetEventRecorder(name), m.GetLogger(), m.GetScheme()}
}

type loggingRecorder struct {
	events.EventRecorder
	logger logr.Logger
	scheme *runtime.Scheme
}

func (r loggingRecorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	r.EventRecorder.Eventf(regarding, related, kind, reason, action, note, args...)
	o, ok := regarding.(client.Object)
	if !ok {
		return
	}
	name := fmt.Sprintf("%T", o)
	if kinds, _, err := r.scheme.ObjectKinds(o); err == nil && len(kinds) > 0 {
		name = kinds[0].Kind
	}
	r.logger.Info("event", "kind", name, "object", strings.TrimPrefix(client.ObjectKeyFromObject(o).String(), "/"), "uid", o.GetUID(),
		"type", kind, "reason", reason, "action", action, "note", fmt.Sprintf(note, args...))
}
