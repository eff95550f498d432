package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/cli/terminal"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// undelete creates claims again for the volumes that they had. The progress is kept in the objects:
// the volume is reserved for the claim by name, the claim exists, the claim is bound. So a command
// that was interrupted can be repeated and continues.
type undelete struct {
	client          client.WithWatch
	out             io.Writer
	screen          terminal.Terminal
	connection      connection
	createNamespace bool
	allowRecreated  bool
	timeout         time.Duration
	// mine are the volumes of the namespace that is being restored.
	mine map[types.UID]bool
}

func newUndeleteCommand() *cobra.Command {
	u := &undelete{}
	cmd := &cobra.Command{
		Use:   "undelete",
		Short: "Restore deleted claims with their data",
		Long: "Restore deleted claims with their labels, annotations and data. `tarn trash list` lists the volumes that can be restored.\n\n" +
			"A volume can be restored while it is in the trash, or as long as its reclaim policy is Retain.\n" +
			"You can interrupt the command and run it again: it then continues.",
	}
	f := cmd.PersistentFlags()
	u.connection.register(cmd, f)
	f.BoolVar(&u.createNamespace, "create-namespace", false, "create the namespace if it does not exist")
	f.BoolVar(&u.allowRecreated, "allow-recreated", false, "restore claims into a namespace that was created after them, and so may be another tenant's")
	f.DurationVar(&u.timeout, "timeout", time.Minute, "how long to wait for the binder, for each claim")
	cmd.AddCommand(u.volumeCommand(), u.namespaceCommand())
	return cmd
}

func (u *undelete) volumeCommand() *cobra.Command {
	var as string
	cmd := &cobra.Command{
		Use:               "volume NAME",
		SuggestFor:        []string{"claim", "pvc"},
		Short:             "Restore the claim of a PersistentVolume",
		Example:           "  tarn undelete volume pvc-0f6c24f0-5d0c-4a53-8a0f-2f3f8a9d8f11\n  tarn undelete volume pvc-0f6c24f0-5d0c-4a53-8a0f-2f3f8a9d8f11 --as shop/data-of-yesterday",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeTrash(&u.connection, func(i trashItem) string { return i.Volume }),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := noClaims(cmd, args); err != nil {
				return err
			}
			var target client.ObjectKey
			if as != "" {
				namespace, name, both := strings.Cut(as, "/")
				if !both || namespace == "" || name == "" || strings.Contains(name, "/") {
					return fmt.Errorf("--as %q is not a claim; give NAMESPACE/NAME", as)
				}
				target = client.ObjectKey{Namespace: namespace, Name: name}
			}
			if err := u.connect(cmd); err != nil {
				return err
			}
			return u.volume(cmd.Context(), args[0], target)
		},
	}
	cmd.Flags().StringVar(&as, "as", "", "NAMESPACE/NAME of the claim to create; the default is the volume's former claim")
	return cmd
}

func (u *undelete) namespaceCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "namespace NAME",
		Short:   "Restore every claim of a namespace whose volume is in the trash",
		Example: "  tarn undelete namespace shop --create-namespace",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: completeTrash(&u.connection, func(i trashItem) string {
			namespace, _, _ := strings.Cut(i.Claim, "/")
			return namespace
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := u.connect(cmd); err != nil {
				return err
			}
			return u.namespace(cmd.Context(), args[0])
		},
	}
}

func (u *undelete) connect(cmd *cobra.Command) (err error) {
	u.out, u.screen = cmd.OutOrStdout(), terminal.Of(cmd.ErrOrStderr())
	u.client, err = u.connection.client()
	return err
}

// volume restores the claim of a volume, under the name target if that is set. Without target, the
// claim's namespace must be the original one. A namespace created later with that name may be
// another tenant's.
func (u *undelete) volume(ctx context.Context, name string, target client.ObjectKey) error {
	vol, err := kube.Get(ctx, u.client, client.ObjectKey{Name: name}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if vol == nil {
		return fmt.Errorf("there is no PersistentVolume %q; run tarn trash list to see what can be restored", name)
	}
	chosen := target.Name != ""
	if !chosen {
		ref := vol.Spec.ClaimRef
		if ref == nil {
			return fmt.Errorf("PersistentVolume %s has no former claim; give the new claim with --as NAMESPACE/NAME", name)
		}
		target = client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	}
	claim, err := kube.Get(ctx, u.client, target, &corev1.PersistentVolumeClaim{})
	if err != nil {
		return err
	}
	if claim == nil {
		if claim, err = u.restore(ctx, vol, target, chosen); err != nil {
			return err
		}
	}
	if claim.Spec.VolumeName != vol.Name {
		return fmt.Errorf("claim %s exists and uses another volume or waits for one: give another name with --as NAMESPACE/NAME, or delete that claim first", target)
	}
	if err := u.awaitBound(ctx, claim); err != nil {
		return err
	}
	fmt.Fprintf(u.out, "claim %s is restored with volume %s and Bound; a pod in namespace %s uses it with\n  volumes: [{name: data, persistentVolumeClaim: {claimName: %s}}]\nkubectl -n %s describe pvc %s\n",
		target, vol.Name, target.Namespace, target.Name, target.Namespace, target.Name)
	return nil
}

// restore reserves a volume for a claim that does not exist, and creates the claim. A dry run comes
// first, so that a claim which the API server rejects changes nothing.
func (u *undelete) restore(ctx context.Context, vol *corev1.PersistentVolume, target client.ObjectKey, chosen bool) (*corev1.PersistentVolumeClaim, error) {
	record, err := kube.Get(ctx, u.client, client.ObjectKeyFromObject(vol), &tarnv1.PavVolume{})
	if err != nil {
		return nil, err
	}
	if err := obstacle(vol, record, target); err != nil {
		return nil, err
	}
	memory, err := memoryOf(vol, record)
	if err != nil {
		return nil, err
	}
	claim, note := claimFor(vol, memory, target)
	namespace, err := u.needNamespace(ctx, target.Namespace, vol.UID)
	if err != nil {
		return nil, err
	}
	if since := knownSince(vol, memory); !chosen && !reservedFor(vol, target) && since.Before(&namespace.CreationTimestamp) && !u.made(namespace, vol) && !u.allowRecreated {
		return nil, fmt.Errorf("claim %s of PersistentVolume %s: namespace %q was created at %s, after the claim (%s or later), so it may be another tenant's; "+
			"to bring the claim back there all the same: --allow-recreated; else give another namespace: tarn undelete volume %s --as NAMESPACE/NAME",
			target, vol.Name, namespace.Name, namespace.CreationTimestamp.UTC().Format(time.RFC3339), since.UTC().Format(time.RFC3339), vol.Name)
	}
	if err := u.client.Create(ctx, claim.DeepCopy(), client.DryRunAll); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("the API server rejects claim %s: %w", target, err)
	}
	if err := u.reserve(ctx, vol, target); err != nil {
		return nil, err
	}
	err = u.client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) { // another writer created it first; the caller checks which volume it uses
		err = u.client.Get(ctx, target, claim)
	}
	if err != nil {
		return nil, fmt.Errorf("creating claim %s: %w; volume %s is reserved for it: run the command again", target, err, vol.Name)
	}
	if note != "" {
		fmt.Fprintln(u.out, note)
	}
	return claim, nil
}

// needNamespace returns a namespace by name. It creates a missing one for the volume, if it may.
func (u *undelete) needNamespace(ctx context.Context, name string, of types.UID) (*corev1.Namespace, error) {
	namespace, err := kube.Get(ctx, u.client, client.ObjectKey{Name: name}, &corev1.Namespace{})
	switch {
	case err != nil:
		return nil, err
	case namespace != nil && namespace.DeletionTimestamp != nil:
		return nil, fmt.Errorf("namespace %q is being deleted; wait until it is gone, or give another one with --as NAMESPACE/NAME", name)
	case namespace != nil:
		return namespace, nil
	case !u.createNamespace:
		return nil, fmt.Errorf("there is no namespace %q; create it with --create-namespace, or give another one with --as NAMESPACE/NAME", name)
	}
	namespace = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{tarnv1.AnnotationUndeleted: string(of)}}}
	if err := u.client.Create(ctx, namespace); err != nil {
		return nil, fmt.Errorf("creating namespace %s: %w", name, err)
	}
	return namespace, nil
}

// made says whether a namespace was created to restore this volume's claim, or another claim of the
// same namespace. This command may have created it, or one that was interrupted.
func (u *undelete) made(namespace *corev1.Namespace, vol *corev1.PersistentVolume) bool {
	uid := types.UID(namespace.Annotations[tarnv1.AnnotationUndeleted])
	return uid == vol.UID || u.mine[uid]
}

// reserve reserves a volume for a claim by name and takes it out of the trash. It fails if the
// volume has changed since it was judged: its retention may end at this moment.
func (u *undelete) reserve(ctx context.Context, vol *corev1.PersistentVolume, target client.ObjectKey) error {
	if reservedFor(vol, target) {
		return nil
	}
	base := vol.DeepCopy()
	vol.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: target.Namespace, Name: target.Name}
	delete(vol.Annotations, volume.AnnBoundByController)
	volume.Drawn(vol)
	volume.Untrash(vol)
	return patchAsRead(ctx, u.client, vol, base, fmt.Sprintf("reserving PersistentVolume %s for claim %s", vol.Name, target))
}

// awaitBound watches a claim until the binder has bound it.
func (u *undelete) awaitBound(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	ctx, cancel := context.WithTimeoutCause(ctx, u.timeout, errors.New("timeout"))
	defer cancel()
	stuck := func(why error) error {
		err := fmt.Errorf("claim %s/%s is created for volume %s, but not Bound yet (%w): run tarn explain claim %s/%s to see why; you can run this command again",
			claim.Namespace, claim.Name, claim.Spec.VolumeName, why, claim.Namespace, claim.Name)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return timeoutError{err}
		}
		return err
	}
	u.screen.Progress(fmt.Sprintf("claim %s/%s is created for volume %s and waits for the binder", claim.Namespace, claim.Name, claim.Spec.VolumeName))
	defer u.screen.Done()
	for ctx.Err() == nil {
		// A watch without a version begins with the current state of the object.
		watch, err := u.client.Watch(ctx, &corev1.PersistentVolumeClaimList{}, client.InNamespace(claim.Namespace),
			client.MatchingFields{"metadata.name": claim.Name})
		if err != nil {
			return stuck(err)
		}
		for event := range watch.ResultChan() {
			now, ok := event.Object.(*corev1.PersistentVolumeClaim)
			if ok && now.UID == claim.UID && now.Status.Phase == corev1.ClaimBound {
				watch.Stop()
				return nil
			}
		}
	}
	return stuck(context.Cause(ctx))
}

// knownSince returns a time at which the volume's claim existed, or after which it was created. It
// is the creation of the claim or of the volume, whichever is later. A volume is only given to a
// claim that exists, so its claim cannot have ended before the volume was created.
func knownSince(vol *corev1.PersistentVolume, memory *volume.ClaimMemory) metav1.Time {
	if memory != nil && vol.CreationTimestamp.Before(&memory.Created) {
		return memory.Created
	}
	return vol.CreationTimestamp
}

// reservedFor says whether a volume is reserved by name for a claim that does not exist yet.
func reservedFor(vol *corev1.PersistentVolume, target client.ObjectKey) bool {
	ref := vol.Spec.ClaimRef
	return ref != nil && ref.UID == "" && ref.Namespace == target.Namespace && ref.Name == target.Name
}

// obstacle says why a volume cannot be given to a new claim, nil if it can.
func obstacle(vol *corev1.PersistentVolume, record *tarnv1.PavVolume, target client.ObjectKey) error {
	ref := vol.Spec.ClaimRef
	switch {
	case vol.DeletionTimestamp != nil:
		return fmt.Errorf("PersistentVolume %s is being deleted; it cannot be restored", vol.Name)
	case record != nil && (record.DeletionTimestamp != nil || record.Status.Phase != tarnv1.VolumeCreated):
		return fmt.Errorf("PavVolume %s is %s: its storage is being destroyed; run kubectl describe pavvolume %s to see the progress", vol.Name, cmp.Or(record.Status.Phase, "new"), vol.Name)
	case vol.Status.Phase == corev1.VolumeBound && ref != nil && ref.UID != "":
		return fmt.Errorf("PersistentVolume %s is Bound to claim %s/%s; if that claim has just been deleted, run the command again", vol.Name, ref.Namespace, ref.Name)
	case vol.Status.Phase == corev1.VolumeFailed:
		return fmt.Errorf("PersistentVolume %s is Failed (%s) and may be partly destroyed: check its data, then set its reclaim policy to Retain and remove the uid from its claimRef", vol.Name, cmp.Or(vol.Status.Message, "no message"))
	case vol.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle: // a recycler that has begun is not stopped by another policy
		return fmt.Errorf("the reclaim policy of PersistentVolume %s is Recycle and it is not in the trash: its data is gone, or is being deleted", vol.Name)
	case vol.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		return fmt.Errorf("the reclaim policy of PersistentVolume %s is %s and it is not in the trash: its retention is over or it had none, and its data may be gone; to stop that: kubectl patch pv %s -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"Retain\"}}'",
			vol.Name, vol.Spec.PersistentVolumeReclaimPolicy, vol.Name)
	case ref != nil && !volume.ReleasedFrom(vol) && ref.UID != "":
		return fmt.Errorf("PersistentVolume %s is %s, not Released; it belongs to claim %s/%s", vol.Name, vol.Status.Phase, ref.Namespace, ref.Name)
	case ref != nil && ref.UID == "" && !reservedFor(vol, target) && !volume.Held(vol):
		return fmt.Errorf("PersistentVolume %s is reserved for claim %s/%s; restore it as that claim, or remove its claimRef first", vol.Name, ref.Namespace, ref.Name)
	}
	return nil
}

// claimFor returns the claim to create for a volume. It uses what memoryOf found: the trash's copy
// of the claim, else the record's. If there is neither, it uses the volume alone. note is a remark
// for the user.
func claimFor(vol *corev1.PersistentVolume, memory *volume.ClaimMemory, target client.ObjectKey) (claim *corev1.PersistentVolumeClaim, note string) {
	if memory == nil {
		memory = &volume.ClaimMemory{Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: vol.Spec.AccessModes, VolumeMode: vol.Spec.VolumeMode, StorageClassName: ptr.To(volume.ClassOfVolume(vol)),
			VolumeAttributesClassName: vol.Spec.VolumeAttributesClassName,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: vol.Spec.Capacity[corev1.ResourceStorage]},
			},
		}}
		note = "note: only the volume describes the former claim; the claim's labels and annotations are unknown"
	}
	if memory.Cut {
		note = "note: the claim's labels and annotations were too large to be kept; they are missing"
	}
	claim = &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: target.Namespace, Name: target.Name, Labels: memory.Labels, Annotations: memory.Annotations},
		Spec:       memory.Spec,
	}
	claim.Spec.VolumeName = vol.Name
	claim.Spec.DataSource, claim.Spec.DataSourceRef = nil, nil // the data is there already, and its source may be gone
	return claim, note
}

// memoryOf returns what is known of the volume's former claim, nil for nothing.
func memoryOf(vol *corev1.PersistentVolume, record *tarnv1.PavVolume) (*volume.ClaimMemory, error) {
	memory, err := volume.RememberedClaim(vol)
	if err != nil || memory != nil || record == nil {
		return memory, err
	}
	if len(record.Spec.ClaimSnapshot.Raw) == 0 {
		return nil, nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	if err := json.Unmarshal(record.Spec.ClaimSnapshot.Raw, claim); err != nil {
		return nil, fmt.Errorf("claimSnapshot of PavVolume %s is not a claim: %w", record.Name, err)
	}
	text, err := volume.RememberClaim(claim) // leaves out the annotations that binders set
	if err != nil {
		return nil, err
	}
	memory = &volume.ClaimMemory{}
	return memory, json.Unmarshal([]byte(text), memory)
}

// namespace restores every claim of a namespace that can be restored. It reports the others and
// continues.
func (u *undelete) namespace(ctx context.Context, name string) error {
	volumes := &corev1.PersistentVolumeList{}
	if err := u.client.List(ctx, volumes); err != nil {
		return fmt.Errorf("listing PersistentVolumes: %w", err)
	}
	of := map[string][]string{}
	u.mine = map[types.UID]bool{}
	for i := range volumes.Items {
		vol := &volumes.Items[i]
		ref := vol.Spec.ClaimRef
		if ref == nil || ref.Namespace != name {
			continue
		}
		u.mine[vol.UID] = true
		if kept(vol) || reservedHeld(vol) {
			of[ref.Name] = append(of[ref.Name], vol.Name)
		}
	}
	if len(of) == 0 {
		return fmt.Errorf("no volume of a claim of namespace %q can be restored; run tarn trash list to see what can", name)
	}
	var failures []error
	for _, claim := range slices.Sorted(maps.Keys(of)) {
		if vols := of[claim]; len(vols) > 1 {
			slices.Sort(vols)
			failures = append(failures, fmt.Errorf("claim %s/%s had several volumes; choose one with tarn undelete volume NAME: %s", name, claim, strings.Join(vols, ", ")))
			continue
		}
		if err := u.volume(ctx, of[claim][0], client.ObjectKey{}); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}
