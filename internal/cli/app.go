package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"

	appplan "tarn.dev/tarn/internal/app/plan"
	appservice "tarn.dev/tarn/internal/app/service"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// apps are the calls on applications. They are answered by Kubernetes with the user's own rights,
// or by the REST server. A command cannot tell which: both decide by package app/plan.
type apps interface {
	Create(ctx context.Context, namespace, id string) (*appplan.App, error)
	List(ctx context.Context, namespace string) ([]appplan.App, error)
	Get(ctx context.Context, namespace, id string) (*appplan.App, error)
	Delete(ctx context.Context, namespace, id string) (*appplan.Deletion, error)
	Plan(ctx context.Context, namespace, id string, source appplan.Source, isNew bool) (*appplan.Plan, error)
	Deploy(ctx context.Context, namespace, id string, source appplan.Source) (*appplan.Deployed, error)
	Scale(ctx context.Context, namespace, id string, replicas int32) (*appplan.App, error)
	Volumes(ctx context.Context, namespace, id string) ([]appplan.Volume, error)
	Resize(ctx context.Context, namespace, id, volume string, sizeGi int64) (*appplan.Resized, error)
	Events(ctx context.Context, namespace, id string, yield func(appplan.Event) error) error
}

// appFlags are the flags that say where the applications are.
type appFlags struct {
	connection connection
	server     serverFlags
	namespace  string
	// classes are the storage classes of volumes that name none, by access mode. They are not
	// checked yet.
	classes map[string]string
	output  output
}

func (f *appFlags) register(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	f.connection.register(cmd, flags)
	f.server.register(flags)
	flags.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the apps; the default is that of the kubeconfig's context")
	RegisterAppClasses(flags, &f.classes, "default storage class for each access mode; must match tarn controller. Not needed with --server")
	completeFlag(cmd, "namespace", &f.connection, namespaceKind)
}

// connect returns the client that answers the calls, and the namespace to ask for.
func (f *appFlags) connect() (apps, string, error) {
	namespace := f.namespace
	classes, err := AppClasses(f.classes)
	if err != nil {
		return nil, "", err
	}
	if f.server.url != "" {
		if namespace == "" {
			namespace = f.connection.ownNamespace()
		}
		server, err := f.server.connect(f.connection)
		return server, namespace, err
	}
	if namespace == "" {
		if namespace, err = f.connection.namespace(); err != nil {
			return nil, "", err
		}
	}
	live, err := f.connection.client()
	if err != nil {
		return nil, "", err
	}
	return &appservice.Calls{Client: live, Classes: classes, Verdict: appservice.DefaultVerdict}, namespace, nil
}

func newAppCommand() *cobra.Command {
	var flags appFlags
	cmd := &cobra.Command{
		Use:   "app",
		Short: "Deploy applications with volumes from a paas.toml",
		Long: "Deploy applications with their volumes from a paas.toml, scale them, and delete them. An app belongs to a namespace\n" +
			"and has an ID. Deploying never deletes a volume: one that the paas.toml no longer names is detached and kept.\n\n" +
			"The commands call Kubernetes with the rights of your kubeconfig. With --server or $TARN_SERVER they call a server of\n" +
			"`tarn api` instead. Answers, checks and errors are the same.",
	}
	flags.register(cmd)
	cmd.AddCommand(newAppPlanCommand(&flags), newAppDeployCommand(&flags), newAppListCommand(&flags), newAppShowCommand(&flags),
		newAppScaleCommand(&flags), newAppDeleteCommand(&flags))
	return cmd
}

// told rewrites the error of a call so that it says what to do. The error may list problems of a
// paas.toml: file is its name, empty where there is none.
func told(cmd *cobra.Command, file string, err error) error {
	var answered *appplan.Error
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err):
		return errors.New("this cluster does not know apps: install Tarn as docs/operations/install.md says")
	case !errors.As(err, &answered):
		return err
	case len(answered.Problems) > 0:
		for _, p := range answered.Problems {
			at := file + ":"
			if p.Line > 0 {
				at += fmt.Sprintf("%d:%d:", p.Line, p.Column)
			}
			if p.Key != "" {
				at += " " + p.Key + ":"
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s %s\n", at, p.Message)
		}
		return exitError{exitFailed}
	case strings.Contains(answered.Message, "\n"): // several reasons, each on its line
		return fmt.Errorf("rejected:\n  %s", strings.ReplaceAll(answered.Message, "\n", "\n  "))
	}
	return err
}

// RegisterAppClasses adds the flag for the storage classes of app volumes that name none. The API,
// the controllers and a command line that asks Kubernetes itself must all get the same value: each
// of them decides what an app may have.
func RegisterAppClasses(flags *pflag.FlagSet, classes *map[string]string, usage string) {
	defaults := map[string]string{}
	for mode, class := range appspec.DefaultClasses {
		defaults[string(mode)] = class
	}
	flags.StringToStringVar(classes, "app-class", defaults, usage)
}

// AppClasses reads the flag of RegisterAppClasses. A mode that the flag does not name keeps its
// default class.
func AppClasses(words map[string]string) (map[appspec.AccessMode]string, error) {
	classes := maps.Clone(appspec.DefaultClasses)
	for word, class := range words {
		mode := appspec.AccessMode(word)
		if _, known := classes[mode]; !known || class == "" || strings.ContainsAny(class, " /") {
			return nil, fmt.Errorf("--app-class %s=%s: write it as rwo=CLASS,rwx=CLASS", word, class)
		}
		classes[mode] = class
	}
	return classes, nil
}
