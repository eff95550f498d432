package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
