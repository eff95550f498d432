package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"tarn.dev/tarn/cluster/internal/control"
	"tarn.dev/tarn/cluster/internal/image"
	"tarn.dev/tarn/cluster/internal/layout"
)

func newImage(c *cluster) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Import images into a running cluster, without a registry",
	}
	cmd.AddCommand(newImageImport(c), newImageBuild(c))
	return cmd
}

func newImageImport(c *cluster) *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE...",
		Short: "Import image archives (docker save, or OCI)",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, file := range args {
				if err := importArchive(cmd, c, file); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func newImageBuild(c *cluster) *cobra.Command {
	var tag, rootfs, binary string
	var packages []string
	cmd := &cobra.Command{
		Use:   "build --tag REF (--packages NAME,... | --rootfs DIR | --binary FILE) [ENTRYPOINT...]",
		Short: "Build an image from Debian packages, a directory or one static program, and import it",
		Example: `  tarn-cluster image build --tag tarn.dev/btrfs:1 --packages btrfs-progs,mount
  tarn-cluster image build --tag example.org/app:1 --binary bin/app`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(packages) > 0 {
				archive, err := image.Packages(cmd.Context(), tag, packages, args, layout.CacheRoot(), func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) })
				if err != nil {
					return err
				}
				return importArchive(cmd, c, archive)
			}
			dir, err := os.MkdirTemp("", "tarn-cluster-image-")
			if err != nil {
				return fmt.Errorf("creating a temporary directory: %w", err)
			}
			defer os.RemoveAll(dir)
			archive := filepath.Join(dir, "image.tar")
			if err := image.Build(archive, tag, rootfs, binary, args); err != nil {
				return err
			}
			return importArchive(cmd, c, archive)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&tag, "tag", "", "the image's reference, such as example.org/app:1")
	flags.StringSliceVar(&packages, "packages", nil, "Debian packages that the image consists of, with what they depend on")
	flags.StringVar(&rootfs, "rootfs", "", "directory that becomes the image's file system")
	flags.StringVar(&binary, "binary", "", "static program that becomes the image's only file")
	cmd.MarkFlagsOneRequired("packages", "rootfs", "binary")
	cmd.MarkFlagsMutuallyExclusive("packages", "rootfs", "binary")
	if err := cmd.MarkFlagRequired("tag"); err != nil {
		panic(err) // the flag is defined four lines above
	}
	return cmd
}

func importArchive(cmd *cobra.Command, c *cluster, file string) error {
	l, client, err := c.running(cmd.Context())
	if err != nil {
		return err
	}
	s, err := client.Status(cmd.Context())
	if err != nil {
		return err
	}
	if s.Node == "" {
		return errors.New("the cluster has no node to run images: start it without --without-node")
	}
	dir, err := programs()
	if err != nil {
		return err
	}
	said, err := image.Import(cmd.Context(), filepath.Join(dir, "ctr"), l.ContainerdSocket(), file)
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), said)
	var without []string
	for _, n := range s.Nodes {
		of, err := ofNode(l, n.Name)
		if err != nil {
			return err
		}
		if n.State == control.Off || n.Frozen {
			without = append(without, n.Name)
			continue
		}
		if _, err := image.Import(cmd.Context(), filepath.Join(dir, "ctr"), of.ContainerdSocket(), file); err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	if len(without) > 0 {
		return fmt.Errorf("nodes that are off or frozen have not got the image: %s: repeat the command when they run", strings.Join(without, ", "))
	}
	return nil
}
