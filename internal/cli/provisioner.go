package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/provisioners"
)

func newProvisionerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "provisioner",
		Short: "List, see and install the ready provisioners",
		Long:  "List, see and install the provisioners that come with Tarn: " + strings.Join(provisioners.Names(), ", ") + ".",
	}
	cmd.AddCommand(newProvisionerListCommand(), newProvisionerShowCommand(), newProvisionerInstallCommand())
	return cmd
}

// readyProvisioner is a line of the list.
type readyProvisioner struct {
	Name string `json:"name"`
	// Volume says what a volume is.
	Volume string `json:"volume"`
	// AccessModes are those that claims can have, abbreviated as kubectl does; "any" for all.
	AccessModes string `json:"accessModes"`
	Grows       bool   `json:"grows"`
	// Topology is the provisioner's: "Cluster", "Node" for the node that the volume is on, or "Claims"
	// for the nodes of the volumes below it.
	Topology string `json:"topology"`
	// Installed says whether the cluster has a PavProvisioner of the name; nil if that is unknown.
	Installed *bool `json:"installed,omitempty"`
	// Classes are the cluster's StorageClasses of the provisioner.
	Classes []string `json:"classes,omitempty"`
}

func newProvisionerListCommand() *cobra.Command {
	var to connection
	var output output
	cmd := &cobra.Command{
		Use: "list", Short: "List the ready provisioners, and which of them the cluster has", Args: cobra.NoArgs,
		Example: "  tarn provisioner list\n  tarn provisioner list --output json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := readyProvisioners()
			if err != nil {
				return err
			}
			installed, classes, err := to.installed(cmd.Context())
			if err != nil {
				cmd.PrintErrf("what the cluster has is unknown: %v\n", err)
			} else {
				for i := range list {
					list[i].Installed, list[i].Classes = ptr.To(installed[list[i].Name]), classes[list[i].Name]
				}
			}
			return output.print(cmd.OutOrStdout(), list, func(w io.Writer) error { return printReadyProvisioners(w, list) })
		},
	}
	to.register(cmd, cmd.Flags())
	output.register(cmd)
	return cmd
}

func readyProvisioners() ([]readyProvisioner, error) {
	var list []readyProvisioner
	for _, name := range provisioners.Names() {
		description, err := provisioners.Description(name)
		if err != nil {
			return nil, err
		}
		o, err := provisioners.Provisioner(name)
		if err != nil {
			return nil, err
		}
		item := readyProvisioner{Name: name, Volume: description, AccessModes: "any", Topology: string(pavv1.TopologyCluster)}
		if modes, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "volumeValidation", "accessModes"); len(modes) > 0 && len(modes) < len(shortModes) {
			var short []string
			for _, mode := range modes {
				short = append(short, cmp.Or(shortModes[corev1.PersistentVolumeAccessMode(mode)], mode))
			}
			item.AccessModes = strings.Join(short, ",")
		}
		_, item.Grows, _ = unstructured.NestedMap(o.Object, "spec", "volumeExpansion")
		if topology, _, _ := unstructured.NestedString(o.Object, "spec", "topology"); topology != "" {
			item.Topology = topology
		}
		list = append(list, item)
	}
	return list, nil
}

// shortModes are all access modes, with kubectl's abbreviations.
var shortModes = map[corev1.PersistentVolumeAccessMode]string{
	corev1.ReadWriteOnce: "RWO", corev1.ReadOnlyMany: "ROX", corev1.ReadWriteMany: "RWX", corev1.ReadWriteOncePod: "RWOP",
}

// listTime is how long the list waits for the cluster.
const listTime = 5 * time.Second

// installed returns the names of the cluster's PavProvisioners, and of the classes by provisioner.
func (c connection) installed(ctx context.Context) (found map[string]bool, classes map[string][]string, err error) {
	live, err := c.client()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	all := &pavv1.PavProvisionerList{}
	if err := live.List(ctx, all); err != nil && !meta.IsNoMatchError(err) { // a cluster without Tarn has none
		return nil, nil, err
	}
	every := &storagev1.StorageClassList{}
	if err := live.List(ctx, every); err != nil {
		return nil, nil, err
	}
	found, classes = map[string]bool{}, map[string][]string{}
	for i := range all.Items {
		found[all.Items[i].Name] = true
	}
	for i := range every.Items {
		of := every.Items[i].Provisioner
		classes[of] = append(classes[of], every.Items[i].Name)
	}
	return found, classes, nil
}

// usedOn says where a volume can be used, by the provisioner's topology.
var usedOn = map[string]string{"Cluster": "any node", "Node": "its node", "Claims": "as below it"}

func printReadyProvisioners(w io.Writer, list []readyProvisioner) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tACCESS\tGROWS\tUSED ON\tINSTALLED\tCLASSES\tA VOLUME IS")
	yes := func(is bool) string {
		if is {
			return "yes"
		}
		return "no"
	}
	for _, p := range list {
		installed, classes := "-", "-"
		if p.Installed != nil {
			installed, classes = yes(*p.Installed), cmp.Or(strings.Join(p.Classes, ","), "none")
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, p.AccessModes, yes(p.Grows), cmp.Or(usedOn[p.Topology], p.Topology), installed, classes, p.Volume)
	}
	return table.Flush()
}

func newProvisionerShowCommand() *cobra.Command {
	var example bool
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Print what installing a ready provisioner would apply, or its example", Args: cobra.ExactArgs(1),
		Long: "Print the PavProvisioner and the StorageClass that tarn provisioner install would apply. The comment on top lists\n" +
			"the parameters of the class. To change something, redirect the output to a file, edit it and apply that.",
		Example: "  tarn provisioner show btrfs\n  tarn provisioner show btrfs --example | kubectl apply -f -",
		RunE: func(cmd *cobra.Command, args []string) error {
			text := provisioners.Manifest
			if example {
				text = provisioners.Example
			}
			manifest, err := text(args[0])
			if err != nil {
				return misuse(cmd, "%w", err)
			}
			_, err = io.WriteString(cmd.OutOrStdout(), manifest)
			return err
		},
		ValidArgsFunction: completeReady(1),
	}
	cmd.Flags().BoolVar(&example, "example", false, "a claim and a pod that uses it, to try the provisioner")
	return cmd
}

// completeReady proposes ready provisioners for the first arguments, each once.
func completeReady(most int) cobra.CompletionFunc {
	return completing(func(_ *cobra.Command, args []string, _ string) []string {
		if len(args) >= most {
			return nil
		}
		return slices.DeleteFunc(provisioners.Names(), func(name string) bool { return slices.Contains(args, name) })
	})
}

func newProvisionerInstallCommand() *cobra.Command {
	var to connection
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "install NAME...", Short: "Apply ready provisioners with their StorageClasses", Args: cobra.MinimumNArgs(1),
		Long: "Apply ready provisioners, each with a StorageClass of its name, and wait until Tarn has accepted them. Running it\n" +
			"again only changes what differs. It does not make images: it prints how to make the one that the pods need.",
		Example: "  tarn provisioner install btrfs\n  tarn provisioner install xfs shared --context staging",
		RunE: func(cmd *cobra.Command, names []string) error {
			ready := map[string][]*unstructured.Unstructured{}
			for _, name := range names {
				provisioner, err := provisioners.Provisioner(name)
				if err != nil {
					return misuse(cmd, "%w", err)
				}
				class, err := provisioners.Class(name)
				if err != nil {
					return err
				}
				ready[name] = []*unstructured.Unstructured{provisioner, class}
			}
			c, err := to.client()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			for _, name := range slices.Sorted(maps.Keys(ready)) {
				if err := checkClass(ctx, c, ready[name][1]); err != nil {
					return err
				}
			}
			for _, name := range slices.Sorted(maps.Keys(ready)) {
				applied := func(kind, name string) { cmd.Printf("applied %s %s\n", kind, name) }
				if err := kube.Apply(ctx, c, ready[name], applied); err != nil {
					if meta.IsNoMatchError(err) {
						return fmt.Errorf("%w; Tarn is not installed in this cluster: run tarn install first", err)
					}
					return err
				}
				if err := awaitAccepted(ctx, c, name); err != nil {
					return err
				}
				if err := tellNext(cmd, name); err != nil {
					return err
				}
			}
			for _, name := range slices.Sorted(maps.Keys(ready)) {
				if err := warnBelow(ctx, cmd, c, ready[name][1]); err != nil {
					return err
				}
			}
			return nil
		},
		ValidArgsFunction: completeReady(len(provisioners.Names())),
	}
	to.register(cmd, cmd.Flags())
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait until Tarn has accepted the provisioners; after that the exit status is 3")
	return cmd
}

// checkClass fails if the cluster has a class of the name that differs in a field that cannot be
// changed.
func checkClass(ctx context.Context, c client.Reader, ready *unstructured.Unstructured) error {
	want, now := &storagev1.StorageClass{}, &storagev1.StorageClass{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(ready.Object, want); err != nil {
		return fmt.Errorf("reading StorageClass %s: %w", ready.GetName(), err)
	}
	err := c.Get(ctx, client.ObjectKeyFromObject(want), now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading StorageClass %s: %w", want.Name, err)
	}
	for _, field := range []struct{ name, now, want string }{
		{"provisioner", now.Provisioner, want.Provisioner},
		{"reclaimPolicy", string(ptr.Deref(now.ReclaimPolicy, "Delete")), string(ptr.Deref(want.ReclaimPolicy, "Delete"))},
		{"volumeBindingMode", string(ptr.Deref(now.VolumeBindingMode, "Immediate")), string(ptr.Deref(want.VolumeBindingMode, "Immediate"))},
		{"parameters", parametersText(now.Parameters), parametersText(want.Parameters)},
	} {
		if field.now != field.want {
			return fmt.Errorf("StorageClass %[1]s exists with another %[2]s: %[3]s, not %[4]s, and that field cannot be changed; nothing was applied. "+
				"To keep your class, run tarn install --provisioners=%[1]s. To replace it, delete the class (its volumes stay) and run this command again",
				want.Name, field.name, field.now, field.want)
		}
	}
	return nil
}

func parametersText(parameters map[string]string) string {
	if len(parameters) == 0 {
		return "none"
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		all = append(all, name+"="+parameters[name])
	}
	return strings.Join(all, ",")
}

// awaitAccepted watches a provisioner until Tarn's controller has validated its current spec.
func awaitAccepted(ctx context.Context, c client.WithWatch, name string) error {
	last := "no controller has validated it; check that Tarn's controller runs"
	for ctx.Err() == nil {
		// A watch without a version begins with the current state of the object.
		watch, err := c.Watch(ctx, &pavv1.PavProvisionerList{}, client.MatchingFields{"metadata.name": name})
		if err != nil {
			return fmt.Errorf("watching PavProvisioner %s: %w", name, err)
		}
		for event := range watch.ResultChan() {
			p, ok := event.Object.(*pavv1.PavProvisioner)
			if !ok {
				continue
			}
			accepted := meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted)
			switch {
			case accepted == nil || accepted.ObservedGeneration < p.Generation:
				continue
			case accepted.Status == metav1.ConditionTrue:
				watch.Stop()
				return nil
			case accepted.Status == metav1.ConditionFalse:
				watch.Stop()
				return fmt.Errorf("PavProvisioner %s was rejected: %s: %s", name, accepted.Reason, accepted.Message)
			}
			last = accepted.Message
		}
	}
	err := fmt.Errorf("PavProvisioner %s is applied, but not accepted yet: %s", name, last)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return timeoutError{err}
	}
	return err
}

// warnBelow warns if the class over which volumes of a class lie does not exist.
func warnBelow(ctx context.Context, cmd *cobra.Command, c client.Reader, class *unstructured.Unstructured) error {
	below, _, _ := unstructured.NestedString(class.Object, "parameters", "backingClass")
	if below == "" {
		return nil
	}
	err := c.Get(ctx, client.ObjectKey{Name: below}, &storagev1.StorageClass{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	remedy := "create it"
	if slices.Contains(provisioners.Names(), below) {
		remedy = "run: tarn provisioner install " + below
	}
	cmd.PrintErrf("warning: StorageClass %s, over which volumes of class %s lie, does not exist; %s\n", below, class.GetName(), remedy)
	return nil
}

// tellNext prints what an administrator does after a provisioner was installed.
func tellNext(cmd *cobra.Command, name string) error {
	image, packages, err := provisioners.Image(name)
	if err != nil {
		return err
	}
	cmd.Printf("Tarn has accepted provisioner %s. Its pods use the image %s:\n", name, image)
	if image == provisioners.ToolImage {
		cmd.Printf("  the embedded cluster has it; elsewhere, build it from provisioners/Dockerfile of Tarn's source\n")
	} else {
		cmd.Printf("  on the embedded cluster: tarn-cluster image build --tag %s --packages %s\n", image, strings.Join(packages, ","))
		cmd.Printf("  elsewhere, build it from provisioners/%s/Dockerfile of Tarn's source, and make it available to the nodes\n", name)
	}
	cmd.Printf("Then try it: tarn provisioner show %s --example | kubectl apply -f -\n", name)
	return nil
}
