package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// command is the content of a command's --help.
type command struct {
	path, long, usage, example string
	flags                      []flag
	inherits                   bool // it has flags of the commands above it too
	below                      []*command
	short                      string
}

type flag struct{ name, short, value, usage, fallback string }

var kubernetesPin = regexp.MustCompile(`k8s\.io/kubernetes v(\S+)`)

// commandLines builds the programs and asks them for their help.
func commandLines(root string) ([]*command, error) {
	built, err := os.MkdirTemp("", "reference")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(built) }()
	pins, err := os.ReadFile(filepath.Join(root, "cluster/go.mod"))
	if err != nil {
		return nil, err
	}
	version := kubernetesPin.FindSubmatch(pins)
	if version == nil {
		return nil, errors.New("cluster/go.mod names no version of k8s.io/kubernetes")
	}
	var programs []*command
	for _, p := range []struct{ name, module, flags string }{
		{"tarn", ".", ""},
		{"tarn-cluster", "cluster", "-X tarn.dev/tarn/cluster/internal/cli.kubernetesVersion=" + string(version[1])},
	} {
		program := filepath.Join(built, p.name)
		build := exec.Command("go", "build", "-C", filepath.Join(root, p.module), "-ldflags", p.flags, "-o", program, "./cmd/"+p.name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if said, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building %s: %w: %s", p.name, err, said)
		}
		c, err := ask(program, []string{p.name}, "")
		if err != nil {
			return nil, err
		}
		programs = append(programs, c)
	}
	return programs, nil
}

// ask reads the help of a command and of all its subcommands.
func ask(program string, path []string, short string) (*command, error) {
	asked := exec.Command(program, append(path[1:len(path):len(path)], "--help")...)
	asked.Env = []string{"HOME=/nonexistent"} // a setting of this machine is not a default
	text, err := asked.Output()
	if err != nil {
		return nil, fmt.Errorf("%s --help: %w", strings.Join(path, " "), err)
	}
	c, below := parseHelp(string(text))
	c.path, c.short = strings.Join(path, " "), short
	for _, row := range below {
		if row[0] == "help" || row[0] == "completion" {
			continue // cobra's own
		}
		sub, err := ask(program, append(path[:len(path):len(path)], row[0]), row[1])
		if err != nil {
			return nil, err
		}
		c.below = append(c.below, sub)
	}
	return c, nil
}

var (
	title    = regexp.MustCompile(`^[A-Z][^:]*:$`)
	helpRow  = regexp.MustCompile(`^  (\S+)\s+(\S.*)$`)
	helpFlag = regexp.MustCompile(`^\s+(?:-(\w), )?--([\w-]+)(?: ([\w./-]+))?\s{3,}(\S.*)$`)
	fallback = regexp.MustCompile(`^(.*) \(default (.*)\)$`)
)

// parseHelp reads cobra's output, and gives names and descriptions of the subcommands.
func parseHelp(text string) (*command, [][2]string) {
	c := &command{}
	c.long, text, _ = strings.Cut(text, "\nUsage:\n")
	c.long = strings.TrimSpace(c.long)
	section := "Usage:"
	var below [][2]string
	for _, line := range strings.Split(text, "\n") {
		if title.MatchString(line) {
			section = line
			continue
		}
		switch section {
		case "Usage:":
			if strings.TrimSpace(line) != "" {
				c.usage = strings.TrimSpace(line)
			}
		case "Aliases:":
		case "Examples:":
			c.example += strings.TrimPrefix(line, "  ") + "\n"
		case "Flags:", "Global Flags:":
			found := helpFlag.FindStringSubmatch(line)
			if found == nil || found[2] == "help" {
				continue
			}
			if section == "Global Flags:" {
				c.inherits = true
				continue
			}
			f := flag{name: found[2], short: found[1], value: found[3], usage: found[4]}
			if has := fallback.FindStringSubmatch(f.usage); has != nil {
				f.usage, f.fallback = has[1], strings.Trim(has[2], `"`)
			}
			c.flags = append(c.flags, f)
		default:
			if row := helpRow.FindStringSubmatch(line); row != nil {
				below = append(below, [2]string{row[1], row[2]})
			}
		}
	}
	c.example = strings.TrimSpace(c.example)
	return c, below
}

// cliPage describes every command.
func cliPage(programs []*command) string {
	var list, sections strings.Builder
	for _, program := range programs {
		each(program, nil, func(c, above *command) {
			if len(c.below) == 0 {
				fmt.Fprintf(&list, "| [`%s`](#%s) | %s |\n", c.path, slug(c.path), cell(c.short))
			}
			sections.WriteString(commandSection(c, above))
		})
	}
	return header("Commands", "This page lists every command of `tarn` and of `tarn-cluster`, with all flags. `--help` of a command prints the same.") +
		"\n| command | purpose |\n|---|---|\n" + list.String() + sections.String()
}

// each calls a function for a command and all its subcommands, with the nearest parent that has
// flags.
func each(c, above *command, do func(c, above *command)) {
	do(c, above)
	if len(c.flags) > 0 && len(c.below) > 0 {
		above = c
	}
	for _, sub := range c.below {
		each(sub, above, do)
	}
}

func commandSection(c, above *command) string {
	var out strings.Builder
	fmt.Fprintf(&out, "\n## %s\n\n", c.path)
	if len(c.below) == 0 {
		out.WriteString(fence(c.usage) + "\n\n")
	}
	out.WriteString(prose(c.long))
	for _, sub := range c.below {
		fmt.Fprintf(&out, "%s| [`%s`](#%s) | %s |\n", start(sub == c.below[0], "\n| command | purpose |\n|---|---|\n"), sub.path, slug(sub.path), cell(sub.short))
	}
	switch {
	case runs(c):
		fmt.Fprintf(&out, "\nIts flags are on the page [Configuration](configuration.md#%s).\n", slug("flags of "+c.path))
	case len(c.flags) > 0:
		out.WriteString("\n" + flagTable(c))
	}
	if c.inherits && above != nil {
		fmt.Fprintf(&out, "\nThe flags of [`%s`](#%s) apply too.\n", above.path, slug(above.path))
	}
	if c.example != "" {
		out.WriteString("\nExamples:\n\n" + fence(c.example) + "\n")
	}
	return out.String()
}

func start(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

func flagTable(c *command) string {
	var out strings.Builder
	out.WriteString("| flag | default | meaning |\n|---|---|---|\n")
	for _, f := range c.flags {
		name := "`--" + f.name + "`"
		if f.short != "" && f.short != f.name {
			name += ", `-" + f.short + "`"
		}
		value := ""
		if f.fallback != "" {
			value = span(f.fallback)
		}
		fmt.Fprintf(&out, "| %s%s | %s | %s |\n", anchor(slug(c.path+" "+f.name)), name, value, cell(sentence(f.usage)))
	}
	return out.String()
}
