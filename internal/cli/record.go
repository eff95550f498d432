package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

func newRetryCommand() *cobra.Command {
	var to connection
	var currentClass bool
	cmd := &cobra.Command{Use: "retry", Short: "Begin the next attempt of a volume now, without its pause"}
	to.register(cmd, cmd.PersistentFlags())
	volume := &cobra.Command{
		Use: "volume NAME", Short: "Begin the next attempt to make, undo or delete a volume now", Args: cobra.ExactArgs(1),
		Long: "Begin the next attempt to make, undo or delete a volume now, without its pause. NAME is that of its PavVolume.\n\n" +
			"--current-class undoes a failed creation with the parameters that the StorageClass has now, for one attempt: for a\n" +
			"class that had a wrong endpoint or Secret and was made anew.",
		Example: "  tarn retry volume pvc-0f6c24f0-5d0c-4a53-8a0f-2f3f8a9d8f11\n  tarn retry volume pvc-0f6c24f0-5d0c-4a53-8a0f-2f3f8a9d8f11 --current-class",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := to.client()
			if err != nil {
				return err
			}
			return retryVolume(cmd.Context(), c, cmd.OutOrStdout(), args[0], currentClass)
		},
	}
	volume.Flags().BoolVar(&currentClass, "current-class", false, "undo with the parameters the StorageClass has now; what lies where the old ones point stays there")
	volume.ValidArgsFunction = completeRecords(&to)
	cmd.AddCommand(volume)
	return cmd
}

func newForgetCommand() *cobra.Command {
	var to connection
	var yes bool
	cmd := &cobra.Command{Use: "forget", Short: "Give up a volume whose storage cannot be removed"}
	to.register(cmd, cmd.PersistentFlags())
	volume := &cobra.Command{
		Use: "volume NAME", Short: "Give up a volume whose storage cannot be removed", Args: cobra.ExactArgs(1),
		Long: "Give up a volume whose storage cannot be removed. NAME is that of its PavVolume. Its pods are ended, then its PavVolume\n" +
			"and its PersistentVolume go. Its storage stays if there is any, and nothing in the cluster tells of it then.\n\n" +
			"A volume that a claim has is not given up: delete the claim first.",
		Example: "  tarn forget volume pvc-0f6c24f0-5d0c-4a53-8a0f-2f3f8a9d8f11 --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := to.client()
			if err != nil {
				return err
			}
			return forgetVolume(cmd.Context(), c, cmd.OutOrStdout(), args[0], yes)
		},
	}
	volume.Flags().BoolVar(&yes, "yes", false, "do it: nothing in the cluster tells of the storage then")
	volume.ValidArgsFunction = completeRecords(&to)
	cmd.AddCommand(volume)
	return cmd
}

// completeRecords proposes the names of PavVolumes.
func completeRecords(to *connection) cobra.CompletionFunc {
	return completing(func(cmd *cobra.Command, args []string, _ string) []string {
		if len(args) > 0 {
			return nil
		}
		return to.names(cmd.Context(), tarnv1.GroupVersion.WithKind("PavVolume"), "")
	})
}

func recordNamed(ctx context.Context, c client.Client, name string) (*tarnv1.PavVolume, error) {
	record, err := kube.Get(ctx, c, client.ObjectKey{Name: name}, &tarnv1.PavVolume{})
	if err == nil && record == nil {
		err = fmt.Errorf("there is no PavVolume %q; kubectl get pavvolumes lists them", name)
	}
	return record, err
}

// retryVolume asks the controller for the next attempt, by an annotation that names the
// current one.
func retryVolume(ctx context.Context, c client.Client, out io.Writer, name string, currentClass bool) error {
	record, err := recordNamed(ctx, c, name)
	if err != nil {
		return err
	}
	value, what, err := retryOf(record, currentClass)
	if err != nil {
		return err
	}
	if err := annotate(ctx, c, record, tarnv1.AnnotationRetry, value); err != nil {
		return err
	}
	if currentClass {
		what += " with the parameters the class has now; if the old ones point elsewhere, what was made there stays"
	}
	fmt.Fprintf(out, "PavVolume %s: %s\ntarn explain volume %s says how it gets on\n", name, what, name)
	return nil
}

// retryOf is the annotation that has the next attempt of a record begin, and what begins.
func retryOf(record *tarnv1.PavVolume, currentClass bool) (value, what string, err error) {
	status := record.Status
	switch status.Phase {
	case tarnv1.VolumePending:
		switch {
		case currentClass:
			return "", "", fmt.Errorf("PavVolume %s has nothing to undo, and is made with a new class by itself; leave out --current-class", record.Name)
		case status.NextAttemptTime != nil:
			return steppod.RetryAfter(tarnv1.StepCreation, status.Attempts, false), fmt.Sprintf("creation attempt %d begins now", status.Attempts+1), nil
		}
	case tarnv1.VolumeDeleting, tarnv1.VolumeUndoing:
		if currentClass && status.Phase == tarnv1.VolumeDeleting {
			return "", "", fmt.Errorf("PavVolume %s is Deleting: its storage lies where its own parameters point; with others a deletion pod may find nothing and report success; leave out --current-class", record.Name)
		}
		when := "begins now"
		if status.NextDeletionTime == nil {
			when = fmt.Sprintf("begins now if attempt %d waits to start, or when that has failed", status.DeletionAttempts)
		}
		return steppod.RetryAfter(tarnv1.StepDeletion, status.DeletionAttempts, currentClass), fmt.Sprintf("deletion attempt %d %s", status.DeletionAttempts+1, when), nil
	}
	return "", "", fmt.Errorf("PavVolume %s is %s and does not pause; tarn explain volume %s says what it waits for", record.Name, cmp.Or(status.Phase, tarnv1.VolumePending), record.Name)
}

// forgetVolume marks a record as given up and deletes it. The controller does the rest.
func forgetVolume(ctx context.Context, c client.Client, out io.Writer, name string, yes bool) error {
	record, err := recordNamed(ctx, c, name)
	if err != nil {
		return err
	}
	vol, err := kube.Get(ctx, c, client.ObjectKey{Name: name}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if vol != nil && (vol.Status.Phase == corev1.VolumeBound || vol.DeletionTimestamp == nil && vol.Status.Phase != corev1.VolumeReleased) {
		return fmt.Errorf("PersistentVolume %s is %s, not Released; a volume that a claim has or may get is not given up: delete its claim first", name, vol.Status.Phase)
	}
	what := fmt.Sprintf("PavVolume %s, %s: %s", name, cmp.Or(record.Status.Phase, tarnv1.VolumePending), steppod.GivenUp(record))
	if !yes {
		fmt.Fprintln(out, "would forget", what)
		return errors.New("nothing was done; give --yes to do it")
	}
	if err := annotate(ctx, c, record, tarnv1.AnnotationForget, string(record.UID)); err != nil {
		return err
	}
	if err := c.Delete(ctx, record, client.Preconditions{UID: &record.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting PavVolume %s: %w", name, err)
	}
	fmt.Fprintf(out, "forgetting %s\nit goes when its pods have ended; tarn explain volume %s says what keeps it\n", what, name)
	return nil
}

// annotate gives a record, as the version that was judged, an annotation.
func annotate(ctx context.Context, c client.Client, record *tarnv1.PavVolume, key, value string) error {
	base := record.DeepCopy()
	metav1.SetMetaDataAnnotation(&record.ObjectMeta, key, value)
	err := c.Patch(ctx, record, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return fmt.Errorf("PavVolume %s has changed this moment; do the same again", record.Name)
	}
	if err != nil {
		return fmt.Errorf("annotating PavVolume %s: %w", record.Name, err)
	}
	return nil
}
