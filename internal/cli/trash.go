package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// kept says whether a released volume still has its data: it is in the trash, or its policy is
// Retain.
func kept(vol *corev1.PersistentVolume) bool {
	return vol.DeletionTimestamp == nil && volume.ReleasedFrom(vol) && vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
}

// reservedHeld says whether a volume was taken out of the trash for a claim that is not bound yet.
func reservedHeld(vol *corev1.PersistentVolume) bool {
	return vol.DeletionTimestamp == nil && volume.Held(vol) && vol.Spec.ClaimRef != nil && vol.Spec.ClaimRef.UID == ""
}

// trashItem is a volume that can be restored.
type trashItem struct {
	Volume string `json:"volume"`
	// Claim is NAMESPACE/NAME of the former claim, or of the claim that is being restored.
	Claim    string `json:"claim"`
	Capacity string `json:"capacity"`
	// Until is when the retention ends, as RFC 3339; nil if it never ends.
	Until *time.Time `json:"until,omitempty"`
	// Then is the reclaim policy after the retention.
	Then  string `json:"then"`
	State string `json:"state"`
}

func newTrashCommand() *cobra.Command {
	var to connection
	cmd := &cobra.Command{Use: "trash", Short: "See and empty the trash of released volumes"}
	to.register(cmd, cmd.PersistentFlags())
	var output output
	var namespace string
	list := &cobra.Command{
		Use: "list", Short: "List the released volumes that can be restored, and until when", Args: cobra.NoArgs,
		Example: "  tarn trash list\n  tarn trash list --namespace shop --output json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := to.client()
			if err != nil {
				return err
			}
			return listTrash(cmd.Context(), c, cmd.OutOrStdout(), namespace, output, time.Now())
		},
	}
	output.register(list)
	list.Flags().StringVarP(&namespace, "namespace", "n", "", "only volumes of claims of this namespace")
	completeFlag(list, "namespace", &to, namespaceKind)
	var all, yes bool
	purge := &cobra.Command{
		Use: "purge NAME... | --all", Short: "End the retention of volumes in the trash now: their reclaim policy then applies",
		Example: "  tarn trash purge pvc-0f6c24f0-5d0c-4a53-8a0f-2f3f8a9d8f11 --yes\n  tarn trash purge --all --yes",
		RunE: func(cmd *cobra.Command, names []string) error {
			if all == (len(names) > 0) {
				return misuse(cmd, "give the names of volumes, or --all")
			}
			if err := noClaims(cmd, names); err != nil {
				return err
			}
			c, err := to.client()
			if err != nil {
				return err
			}
			return purgeTrash(cmd.Context(), c, cmd.OutOrStdout(), names, yes, time.Now())
		},
	}
	purge.Flags().BoolVar(&all, "all", false, "every volume in the trash")
	purge.Flags().BoolVar(&yes, "yes", false, "do it; deleted data cannot be restored")
	purge.ValidArgsFunction = completeTrash(&to, func(i trashItem) string { return i.Volume })
	cmd.AddCommand(list, purge)
	return cmd
}

// noClaims rejects arguments that name claims instead of volumes.
func noClaims(cmd *cobra.Command, volumes []string) error {
	for _, name := range volumes {
		if strings.Contains(name, "/") {
			return misuse(cmd, "%q is not the name of a volume; tarn trash list shows the volume of each deleted claim", name)
		}
	}
	return nil
}

func listTrash(ctx context.Context, c client.Client, out io.Writer, namespace string, output output, now time.Time) error {
	volumes := &corev1.PersistentVolumeList{}
	if err := c.List(ctx, volumes); err != nil {
		return fmt.Errorf("listing PersistentVolumes: %w", err)
	}
	items := trashItems(volumes.Items, namespace, now)
	return output.print(out, items, func(w io.Writer) error { return printTrash(w, items, now) })
}

func printTrash(w io.Writer, items []trashItem, now time.Time) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VOLUME\tCLAIM\tCAPACITY\tUNTIL\tLEFT\tTHEN\tSTATE")
	for _, i := range items {
		until, left := "forever", "-"
		if i.Until != nil {
			until, left = i.Until.UTC().Format(time.RFC3339), duration.HumanDuration(max(i.Until.Sub(now), 0))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.Volume, i.Claim, i.Capacity, until, left, i.Then, i.State)
	}
	return table.Flush()
}

// trashItems returns the volumes that can be restored, those that expire first at the front.
func trashItems(volumes []corev1.PersistentVolume, namespace string, now time.Time) []trashItem {
	items := []trashItem{}
	for i := range volumes {
		vol := &volumes[i]
		if !kept(vol) && !reservedHeld(vol) || namespace != "" && vol.Spec.ClaimRef.Namespace != namespace {
			continue
		}
		capacity := vol.Spec.Capacity[corev1.ResourceStorage]
		item := trashItem{
			Volume: vol.Name, Claim: vol.Spec.ClaimRef.Namespace + "/" + vol.Spec.ClaimRef.Name, Capacity: capacity.String(),
			Then: string(volume.OwnPolicy(vol)), State: "in the trash",
		}
		until, known, err := volume.TrashedUntil(vol)
		switch {
		case reservedHeld(vol):
			item.State = "being restored; to continue: tarn undelete volume " + vol.Name
		case err != nil:
			item.State = err.Error()
		case !volume.Held(vol):
			item.State = "retained by its policy"
		case !known:
			item.State = "kept until its retention is corrected: kubectl describe pv " + vol.Name
		default:
			item.Until = &until
			if volume.DeletionProtected(vol) {
				item.State += ", protected from deletion"
			} else if !now.Before(until) {
				item.State = "its retention has ended"
			}
		}
		items = append(items, item)
	}
	slices.SortFunc(items, func(a, b trashItem) int {
		switch {
		case a.Until != nil && b.Until != nil:
			return cmp.Or(a.Until.Compare(*b.Until), cmp.Compare(a.Volume, b.Volume))
		case (a.Until == nil) != (b.Until == nil):
			return map[bool]int{true: 1, false: -1}[a.Until == nil]
		}
		return cmp.Compare(a.Volume, b.Volume)
	})
	return items
}

// purgeTrash ends the retention of the named volumes, or of all if names is empty. The controller
// releases each after it has checked that no pod uses it.
func purgeTrash(ctx context.Context, c client.Client, out io.Writer, names []string, yes bool, now time.Time) error {
	var failures []error
	if len(names) == 0 {
		volumes := &corev1.PersistentVolumeList{}
		if err := c.List(ctx, volumes); err != nil {
			return fmt.Errorf("listing PersistentVolumes: %w", err)
		}
		for i := range volumes.Items {
			if unpurgeable(&volumes.Items[i]) == nil {
				names = append(names, volumes.Items[i].Name)
			}
		}
		if len(names) == 0 {
			fmt.Fprintln(out, "the trash is empty")
		}
	}
	for _, name := range names {
		if err := purgeVolume(ctx, c, out, name, yes, now); err != nil {
			failures = append(failures, err)
		}
	}
	if !yes && len(names) > 0 {
		failures = append(failures, errors.New("nothing was changed; to do it, add --yes"))
	}
	return errors.Join(failures...)
}

// unpurgeable says why a volume cannot be purged, nil if it can.
func unpurgeable(vol *corev1.PersistentVolume) error {
	switch _, known, _ := volume.TrashedUntil(vol); {
	case reservedHeld(vol):
		return fmt.Errorf("PersistentVolume %s is being restored as claim %s/%s; finish that first: tarn undelete volume %s", vol.Name, vol.Spec.ClaimRef.Namespace, vol.Spec.ClaimRef.Name, vol.Name)
	case !kept(vol) || !volume.Held(vol) || !known:
		return fmt.Errorf("PersistentVolume %s is not in the trash; run tarn trash list to see what is", vol.Name)
	case volume.DeletionProtected(vol):
		return fmt.Errorf("PersistentVolume %s is protected from deletion by its label; to remove the label: kubectl label pv %s tarn.dev/deletion-protection-", vol.Name, vol.Name)
	}
	return nil
}

func purgeVolume(ctx context.Context, c client.Client, out io.Writer, name string, yes bool, now time.Time) error {
	vol, err := kube.Get(ctx, c, client.ObjectKey{Name: name}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if vol == nil {
		return fmt.Errorf("there is no PersistentVolume %q; run tarn trash list to see what is in the trash", name)
	}
	if err := unpurgeable(vol); err != nil {
		return err
	}
	what := fmt.Sprintf("volume %s of claim %s/%s: its retention ends, and its reclaim policy %s applies", name, vol.Spec.ClaimRef.Namespace, vol.Spec.ClaimRef.Name, volume.OwnPolicy(vol))
	if !yes {
		fmt.Fprintln(out, "would purge", what)
		return nil
	}
	base := vol.DeepCopy()
	volume.Trash(vol, now)
	if err := patchAsRead(ctx, c, vol, base, "purging PersistentVolume "+name); err != nil {
		return err
	}
	fmt.Fprintln(out, "purged", what)
	return nil
}
