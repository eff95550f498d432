package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/steppod"
)

func newRetryCommand() *cobra.Command {
	var to connection
	var currentClass bool
	cmd := &cobra.Command{Use: "retry", Short: "Start the next attempt of a volume now, without backoff"}
	to.register(cmd, cmd.PersistentFlags())
	volume := &cobra.Command{
		Use: "volume NAME", Short: "Start the next attempt to make, undo or delete a volume now", Args: cobra.ExactArgs(1),
		Long: "Start the next attempt to make, undo or delete a volume now, without backoff. NAME is the name of its PavVolume.\n\n" +
			"--current-class undoes a failed creation with the current parameters of the StorageClass, for one attempt. Use it if the\n" +
			"class had a wrong endpoint or Secret and you have created it again.",
		Example: "  tarn retry volume pvc-0f6c24f0-5d0c-4a53-8a0f-2f3f8a9d8f11\n  tarn retry volume pvc-0f6c24f0-5d0c-4a53-8a0f-2f3f8a9d8f11 --current-class",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := to.client()
			if err != nil {
				return err
			}
			return retryVolume(cmd.Context(), c, cmd.OutOrStdout(), args[0], currentClass)
		},
	}
	volume.Flags().BoolVar(&currentClass, "current-class", false, "undo with the current parameters of the StorageClass; data at the place of the old parameters stays")
	volume.ValidArgsFunction = completeRecords(&to)
	cmd.AddCommand(volume)
	return cmd
}

func newForgetCommand() *cobra.Command {
	var to connection
	var yes bool
	cmd := &cobra.Command{Use: "forget", Short: "Delete the record of a volume whose storage cannot be deleted"}
	to.register(cmd, cmd.PersistentFlags())
	volume := &cobra.Command{
		Use: "volume NAME", Short: "Delete the record of a volume whose storage cannot be deleted", Args: cobra.ExactArgs(1),
		Long: "Delete the record of a volume whose storage cannot be deleted. NAME is the name of its PavVolume. Tarn stops the volume's\n" +
			"pods and deletes its PavVolume and PersistentVolume. Storage that exists stays, and the cluster no longer records it.\n\n" +
			"A volume that a claim uses is rejected: delete the claim first.",
		Example: "  tarn forget volume pvc-0f6c24f0-5d0c-4a53-8a0f-2f3f8a9d8f11 --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := to.client()
			if err != nil {
				return err
			}
			return forgetVolume(cmd.Context(), c, cmd.OutOrStdout(), args[0], yes)
		},
	}
	volume.Flags().BoolVar(&yes, "yes", false, "do it; the cluster then no longer records the storage")
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

// retryVolume asks the controller for the next attempt. It sets an annotation that names the
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
		what += " with the current parameters of the class; if the old ones point elsewhere, storage there stays"
	}
	fmt.Fprintf(out, "PavVolume %s: %s\nrun tarn explain volume %s to see the progress\n", name, what, name)
	return nil
}

// retryOf returns the value of the annotation that starts a record's next attempt, and words what
// starts.
func retryOf(record *tarnv1.PavVolume, currentClass bool) (value, what string, err error) {
	status := record.Status
	switch status.Phase {
	case tarnv1.VolumePending:
		switch {
		case currentClass:
			return "", "", fmt.Errorf("PavVolume %s has nothing to undo; the next attempt uses the current class anyway; omit --current-class", record.Name)
		case status.NextAttemptTime != nil:
			return steppod.RetryAfter(tarnv1.StepCreation, status.Attempts, false), fmt.Sprintf("creation attempt %d starts now", status.Attempts+1), nil
		}
	case tarnv1.VolumeDeleting, tarnv1.VolumeUndoing:
		if currentClass && status.Phase == tarnv1.VolumeDeleting {
			return "", "", fmt.Errorf("PavVolume %s is Deleting: only its own parameters lead to its storage; with others a deletion pod may find nothing and report success; omit --current-class", record.Name)
		}
		when := "starts now"
		if status.NextDeletionTime == nil {
			when = fmt.Sprintf("starts now if attempt %d has not started, or else when that has failed", status.DeletionAttempts)
		}
		return steppod.RetryAfter(tarnv1.StepDeletion, status.DeletionAttempts, currentClass), fmt.Sprintf("deletion attempt %d %s", status.DeletionAttempts+1, when), nil
	}
	return "", "", fmt.Errorf("PavVolume %s is %s and waits for no retry; run tarn explain volume %s to see what it waits for", record.Name, cmp.Or(status.Phase, tarnv1.VolumePending), record.Name)
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
		return fmt.Errorf("PersistentVolume %s is %s, not Released; a claim uses it or may get it: delete its claim first", name, vol.Status.Phase)
	}
	what := fmt.Sprintf("PavVolume %s, %s: %s", name, cmp.Or(record.Status.Phase, tarnv1.VolumePending), steppod.GivenUp(record))
	if !yes {
		fmt.Fprintln(out, "would forget", what)
		return errors.New("nothing was changed; to do it, add --yes")
	}
	if err := annotate(ctx, c, record, tarnv1.AnnotationForget, string(record.UID)); err != nil {
		return err
	}
	if err := c.Delete(ctx, record, client.Preconditions{UID: &record.UID}); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting PavVolume %s: %w", name, err)
	}
	fmt.Fprintf(out, "forgetting %s\nit is deleted when its pods have ended; run tarn explain volume %s to see what keeps it\n", what, name)
	return nil
}

// annotate sets an annotation on a record. It fails if the record has changed since it was judged.
func annotate(ctx context.Context, c client.Client, record *tarnv1.PavVolume, key, value string) error {
	base := record.DeepCopy()
	metav1.SetMetaDataAnnotation(&record.ObjectMeta, key, value)
	return patchAsRead(ctx, c, record, base, "annotating PavVolume "+record.Name)
}
