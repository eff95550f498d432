package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"tarn.dev/tarn/internal/cli/explain"
	"tarn.dev/tarn/internal/kube"
)

// explainTime bounds a whole answer; the read of each log has a shorter limit of its own.
const explainTime = 30 * time.Second

// explainKinds maps the words that a user may write to kinds.
var explainKinds = map[string]explain.Kind{
	"claim": explain.Claim, "claims": explain.Claim, "pvc": explain.Claim, "persistentvolumeclaim": explain.Claim, "persistentvolumeclaims": explain.Claim,
	"volume": explain.Volume, "volumes": explain.Volume, "pv": explain.Volume, "persistentvolume": explain.Volume, "persistentvolumes": explain.Volume,
	"pod": explain.Pod, "pods": explain.Pod, "po": explain.Pod,
	"app": explain.App, "apps": explain.App,
	"pvset": explain.Set, "pvsets": explain.Set, "persistentvolumeset": explain.Set, "persistentvolumesets": explain.Set,
}

func newExplainCommand() *cobra.Command {
	var output output
	var to connection
	var namespace string
	cmd := &cobra.Command{
		Use:   "explain app|claim|volume|pod|pvset [NAMESPACE/]NAME",
		Short: "Explain why an app, a claim, a volume, a pod or a pool waits, and how to fix it",
		Long: "Explain why an app, a claim, a volume, a pod or a pool (pvset) waits now. The output has the verdict, the next step, the\n" +
			"chain from the object to the cause (since when, which pod on which node with the end of its log), and a command that\n" +
			"fixes it.\n\n" +
			"Everything is read live with your own rights. What you may not read is listed, and the rest is explained without it.\n" +
			"Nothing is changed.",
		Example: "  tarn explain claim shop/data\n" +
			"  tarn explain app shop/web\n" +
			"  tarn explain pod -n shop web-0\n" +
			"  tarn explain volume pvc-0f6c24f0-5d0c-4a53-8a0f-2f3f8a9d8f11 --output json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("%q is not a kind and a name; write for example claim shop/data", strings.Join(args, " "))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			asked, err := explained(args[0], args[1], namespace, to.namespace)
			if err != nil {
				return misuse(cmd, "%w", err)
			}
			return runExplain(cmd, to, output, asked)
		},
	}
	f := cmd.Flags()
	output.register(cmd)
	to.register(cmd, f)
	f.StringVarP(&namespace, "namespace", "n", "", "namespace of NAME; the default is that of the kubeconfig's context")
	completeFlag(cmd, "namespace", &to, namespaceKind)
	cmd.ValidArgsFunction = completeExplained(&to, &namespace)
	return cmd
}

// explained returns the object that the arguments name. fallback returns the namespace where the
// arguments name none.
func explained(kind, name, namespace string, fallback func() (string, error)) (explain.Object, error) {
	o := explain.Object{Kind: explainKinds[strings.ToLower(kind)], Name: name}
	if o.Kind == "" {
		return o, fmt.Errorf("kind %q is unknown; give app, claim, volume, pod or pvset", kind)
	}
	clusterWide := o.Kind == explain.Volume || o.Kind == explain.Set
	before, after, both := strings.Cut(name, "/")
	switch {
	case clusterWide && (both || namespace != ""):
		return o, fmt.Errorf("%s %q: this kind has no namespace; give only the name", kind, name)
	case clusterWide:
		return o, nil
	case both && namespace != "" && namespace != before:
		return o, fmt.Errorf("%s %q and --namespace %q name different namespaces; give one", kind, name, namespace)
	case both:
		o.Namespace, o.Name = before, after
	case namespace != "":
		o.Namespace = namespace
	default:
		var err error
		if o.Namespace, err = fallback(); err != nil {
			return o, err
		}
	}
	if o.Namespace == "" || o.Name == "" || strings.Contains(o.Name, "/") {
		return o, fmt.Errorf("%s %q is not a name; give NAMESPACE/NAME, or NAME and --namespace", kind, name)
	}
	return o, nil
}

func runExplain(cmd *cobra.Command, to connection, output output, asked explain.Object) error {
	config, err := to.config()
	if err != nil {
		return err
	}
	c, err := client.New(config, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return fmt.Errorf("reaching the API server: %w", err)
	}
	logs, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("reaching the API server: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), explainTime, errors.New("the API server did not respond within the timeout"))
	defer cancel()
	now := serverTime(ctx, config)
	answer, err := explain.Explain(ctx, explain.Source{Client: c, Logs: logs.CoreV1(), Namespace: Namespace}, asked, now)
	if err != nil {
		return err
	}
	return output.print(cmd.OutOrStdout(), answer, func(w io.Writer) error { return answer.Print(w, now) })
}
