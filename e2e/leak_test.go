//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pav "tarn.dev/tarn/api/pav/v1alpha1"
	tarn "tarn.dev/tarn/api/v1alpha1"
)

// leftObjects names the objects that belong to a provisioner for which ours returns true. It reads
// from the cache or the API server.
func leftObjects(ctx context.Context, from client.Reader, ours func(provisioner string) bool) ([]string, error) {
	var pods corev1.PodList
	var volumes corev1.PersistentVolumeList
	var records tarn.PavVolumeList
	var stages tarn.PavStageList
	var drivers storagev1.CSIDriverList
	for _, list := range []client.ObjectList{&pods, &volumes, &records, &stages, &drivers} {
		if err := from.List(ctx, list); err != nil {
			return nil, err
		}
	}
	var left []string
	for i := range pods.Items {
		if p := &pods.Items[i]; ours(p.Labels[tarn.LabelProvisioner]) {
			left = append(left, describe(p))
		}
	}
	for i := range volumes.Items {
		if v := &volumes.Items[i]; v.Spec.CSI != nil && ours(v.Spec.CSI.Driver) {
			left = append(left, describe(v))
		}
	}
	for i := range records.Items {
		if r := &records.Items[i]; ours(r.Spec.Provisioner.Name) {
			left = append(left, describe(r))
		}
	}
	for i := range stages.Items {
		if g := &stages.Items[i]; ours(g.Spec.Provisioner.Name) {
			left = append(left, describe(g))
		}
	}
	for i := range drivers.Items {
		if d := &drivers.Items[i]; ours(d.Name) {
			left = append(left, describe(d))
		}
	}
	return left, nil
}

// nothingLeft proves that no object, mount, directory or socket of the case is left. Objects may
// take time. Once they are gone, the rest must be gone too.
func (s *scenario) nothingLeft() error {
	ours := func(provisioner string) bool { return provisioner == s.name }
	var problem error
	s.wait("no object of the case to be left", s.limit(), func() (bool, string) {
		left, err := leftObjects(s.ctx, suite.cached, ours)
		if err == nil && len(left) == 0 {
			left, err = leftObjects(s.ctx, suite.live, ours)
		}
		problem = err
		return len(left) == 0, strings.Join(left, ", ")
	})
	if problem != nil || !suite.machine.here() {
		return problem
	}
	return s.nothingLeftOn(suite.machine)
}

// nothingLeftOn proves that no mount, directory or socket of the case is left on a node.
func (s *scenario) nothingLeftOn(m machine) error {
	// The node agent sees the end of a provisioner when the cluster does. The file system sends no
	// events for that.
	over, again := time.NewTimer(nodeAfterwards), time.NewTicker(50*time.Millisecond)
	defer over.Stop()
	defer again.Stop()
	for {
		left, err := s.leftOnTheNode(m)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return auditedOn(m, s.name)
		}
		select {
		case <-again.C:
		case <-over.C:
			return fmt.Errorf("on the node: %s", strings.Join(left, ", "))
		}
	}
}

// nodeAfterwards is how long the node may take after the last object of a case is gone.
const nodeAfterwards = time.Minute

// leftOnTheNode names mounts, directories and sockets of the case: those with its name, or with the
// uid of any object seen of it.
func (s *scenario) leftOnTheNode(m machine) ([]string, error) {
	ours := seenOf(s.name)
	var left []string
	mounts, err := m.mounts(kubeletDir)
	if err != nil {
		return nil, err
	}
	for _, at := range mounts {
		if ours(at.point) {
			left = append(left, "mount "+at.point)
		}
	}
	paths, err := m.entries(append(slices.Clone(ownDirs), socketDirs...))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if ours(path) {
			left = append(left, path)
		}
	}
	return left, nil
}

// seenOf reports whether a text contains the name of a provisioner, or the uid of any object seen
// of it.
func seenOf(provisioner string) func(text string) bool {
	seen := suite.news.of(provisioner)
	return func(text string) bool {
		if strings.Contains(text, provisioner) {
			return true
		}
		for uid := range seen.uids {
			if strings.Contains(text, string(uid)) {
				return true
			}
		}
		return false
	}
}

// ready are the provisioners that the embedded cluster has from the start.
var ready = []string{"shared", "xfs"}

// nothingLeftAtAll proves, after all cases, that Tarn has nothing left anywhere, except what others
// keep in the same cluster.
func nothingLeftAtAll(ctx context.Context) error {
	var others pav.PavProvisionerList
	if err := suite.live.List(ctx, &others); err != nil {
		return err
	}
	served := map[string]bool{}
	for i := range others.Items {
		p := &others.Items[i]
		if !slices.Contains(ready, p.Name) {
			// Not our own cluster: each case has checked its own objects.
			return nil
		}
		served["CSIDriver "+p.Name] = true
	}
	// The volumes of the ready provisioners for the last cases may still be in deletion.
	over, again := time.NewTimer(soon), time.NewTicker(50*time.Millisecond)
	defer over.Stop()
	defer again.Stop()
	for {
		left, err := leftAtAll(ctx)
		if err != nil {
			return err
		}
		if left = slices.DeleteFunc(left, func(what string) bool { return served[what] }); len(left) == 0 {
			return audited("")
		}
		select {
		case <-again.C:
		case <-over.C:
			return errors.New("left behind: " + strings.Join(left, ", "))
		}
	}
}

// leftAtAll names every remaining object, directory and mount that Tarn has made.
func leftAtAll(ctx context.Context) ([]string, error) {
	left, err := leftObjects(ctx, suite.live, func(provisioner string) bool {
		return provisioner != "" && provisioner != tarn.ResultsDriver && isPavName(provisioner)
	})
	if err != nil || !suite.machine.here() {
		return left, err
	}
	paths, err := suite.machine.entries(ownDirs)
	if err != nil {
		return nil, err
	}
	left = append(left, paths...)
	mounts, err := suite.machine.mounts(stateDir)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		left = append(left, "mount "+m.point)
	}
	return left, nil
}

// isPavName reports whether a CSI driver's name can be that of a PavProvisioner. Those have no
// dots, unlike most others.
func isPavName(driver string) bool { return !strings.Contains(driver, ".") }

// named gives an object's metadata with a name.
func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
