package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

// completionTime is how long a shell may wait for names from the cluster.
const completionTime = 3 * time.Second

// Kinds whose names are completed.
var (
	claimKind       = schema.GroupVersionKind{Version: "v1", Kind: "PersistentVolumeClaim"}
	volumeKind      = schema.GroupVersionKind{Version: "v1", Kind: "PersistentVolume"}
	podKind         = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	namespaceKind   = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}
	appKind         = tarnv1.GroupVersion.WithKind("App")
	poolKind        = tarnv1.GroupVersion.WithKind("PersistentVolumeSet")
	provisionerKind = pavv1.GroupVersion.WithKind("PavProvisioner")
)

// names returns the names of a kind in a namespace, or in all namespaces if namespace is empty. On
// an error it proposes nothing: a shell completion is no place for errors.
func (c connection) names(ctx context.Context, kind schema.GroupVersionKind, namespace string) []string {
	live, err := c.client()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	if live.List(ctx, list, client.InNamespace(namespace)) != nil {
		return nil
	}
	found := make([]string, 0, len(list.Items))
	for i := range list.Items {
		found = append(found, list.Items[i].Name)
	}
	return found
}

// completing turns a function that returns names into a completion function.
func completing(names func(cmd *cobra.Command, args []string, word string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		found := slices.DeleteFunc(names(cmd, args, word), func(name string) bool { return !strings.HasPrefix(name, word) })
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag completes a flag of a command with the names of a kind.
func completeFlag(cmd *cobra.Command, flag string, to *connection, kind schema.GroupVersionKind) {
	_ = cmd.RegisterFlagCompletionFunc(flag, completing(func(cmd *cobra.Command, _ []string, _ string) []string {
		return to.names(cmd.Context(), kind, "")
	}))
}

// completeContexts completes --context with the contexts of the kubeconfig.
func completeContexts(cmd *cobra.Command, to *connection) {
	_ = cmd.RegisterFlagCompletionFunc("context", completing(func(*cobra.Command, []string, string) []string {
		raw, err := to.loader().RawConfig()
		if err != nil {
			return nil
		}
		found := make([]string, 0, len(raw.Contexts))
		for name := range raw.Contexts {
			found = append(found, name)
		}
		slices.Sort(found)
		return found
	}))
}

// explainedKinds maps each kind that explain accepts to the kind whose names complete it.
var explainedKinds = map[string]schema.GroupVersionKind{"claim": claimKind, "volume": volumeKind, "pod": podKind, "pvset": poolKind, "app": appKind}

// completeExplained proposes a kind, then the names of that kind. A name has its namespace in front
// where no flag gives one.
func completeExplained(to *connection, namespace *string) cobra.CompletionFunc {
	return completing(func(cmd *cobra.Command, args []string, word string) []string {
		if len(args) == 0 {
			return []string{"app", "claim", "pod", "pvset", "volume"}
		}
		kind, known := explainedKinds[args[0]]
		if len(args) > 1 || !known {
			return nil
		}
		where, _, inWord := strings.Cut(word, "/")
		if inWord {
			names := to.names(cmd.Context(), kind, where)
			for i := range names {
				names[i] = where + "/" + names[i]
			}
			return names
		}
		where = *namespace
		if where == "" && kind != volumeKind && kind != poolKind {
			where, _ = to.namespace()
		}
		return to.names(cmd.Context(), kind, where)
	})
}

// completeTrash proposes, for each volume that can be restored, the text that a function returns.
func completeTrash(to *connection, name func(trashItem) string) cobra.CompletionFunc {
	return completing(func(cmd *cobra.Command, args []string, _ string) []string {
		live, err := to.client()
		if err != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		volumes := &corev1.PersistentVolumeList{}
		if live.List(ctx, volumes) != nil {
			return nil
		}
		var found []string
		for _, item := range trashItems(volumes.Items, "", time.Now()) {
			if proposed := name(item); !slices.Contains(args, proposed) && !slices.Contains(found, proposed) {
				found = append(found, proposed)
			}
		}
		return found
	})
}

// completeApps proposes apps for the first argument. second proposes the values of the second one.
func (f *appFlags) completeApps(second func(cmd *cobra.Command, app string) []string) cobra.CompletionFunc {
	return completing(func(cmd *cobra.Command, args []string, _ string) []string {
		calls, namespace, err := f.connect()
		if err != nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		switch len(args) {
		case 0:
			all, err := calls.List(ctx, namespace)
			if err != nil {
				return nil
			}
			var found []string
			for i := range all {
				found = append(found, all[i].ID)
			}
			return found
		case 1:
			if second != nil {
				return second(cmd, args[0])
			}
		}
		return nil
	})
}

// volumesOfApp proposes the volumes that an app mounts.
func (f *appFlags) volumesOfApp(cmd *cobra.Command, app string) []string {
	calls, namespace, err := f.connect()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	found, err := calls.Get(ctx, namespace, app)
	if err != nil {
		return nil
	}
	var names []string
	for _, v := range found.Volumes {
		names = append(names, v.Name)
	}
	return names
}
