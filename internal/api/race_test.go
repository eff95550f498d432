//go:build integration

package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	appplan "tarn.dev/tarn/internal/app/plan"
)

// source returns a file with volumes of a size.
func source(image string, sizeGi int) appplan.Source {
	return appplan.Source{Text: fmt.Appendf(nil, "[app]\nimage = %q\n\n[app.env]\nIMAGE = %q\n\n[[volumes]]\nname = \"data\"\nmountPath = \"/data\"\nsize = \"%dGi\"\n", image, image, sizeGi)}
}

// together calls do n times concurrently.
func together(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	var wait sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wait.Go(func() { errs[i] = do(i) })
	}
	wait.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("call %d of %d: %v", i, n, err)
		}
	}
}

func TestFiftyDeploysOfOneAppEndAsOneOfThem(t *testing.T) {
	w := newWorld(t)
	w.class("grows", true)
	c := w.tenant("race")
	calls, ctx := c.through(), context.Background()
	if _, err := calls.Create(ctx, "", "shop"); err != nil {
		t.Fatal(err)
	}
	if _, err := calls.Deploy(ctx, "", "shop", source("shop:0", 10)); err != nil {
		t.Fatal(err)
	}
	w.claim("race", "shop", "data", 10, corev1.ReadWriteOnce, "grows")
	together(t, 51, func(i int) error {
		if i == 25 { // a growth in their midst is not lost
			_, err := calls.Resize(ctx, "", "shop", "data", 30)
			return err
		}
		_, err := calls.Deploy(ctx, "", "shop", source(fmt.Sprintf("shop:%d", i+1), 10))
		return err
	})
	spec := w.app("race", "shop").Spec
	if spec.Image == "shop:0" || spec.Env["IMAGE"] != spec.Image || len(spec.Volumes) != 1 {
		t.Errorf("ended as %+v, which nobody deployed", spec)
	}
	if spec.Volumes[0].SizeGi != 30 {
		t.Errorf("the volume is to have %d GiB, want the 30 it was resized to", spec.Volumes[0].SizeGi)
	}
}

func TestTwoHundredDeploysOfDistinctAppsAllEnd(t *testing.T) {
	w := newWorld(t)
	c := w.tenant("crowd")
	calls, ctx := c.through(), context.Background()
	const apps = 200
	together(t, apps, func(i int) error {
		id := fmt.Sprintf("app-%d", i)
		if _, err := calls.Create(ctx, "", id); err != nil {
			return err
		}
		_, err := calls.Deploy(ctx, "", id, source(id+":1", 1))
		return err
	})
	all, err := calls.List(ctx, "")
	if err != nil || len(all) != apps {
		t.Fatalf("listed %d, %v", len(all), err)
	}
	for _, app := range all {
		if app.Image != app.ID+":1" || len(app.Volumes) != 1 || app.Volumes[0].ClaimName != "paas-app-"+app.ID+"-data" {
			t.Errorf("%s ended as %+v", app.ID, app)
		}
	}
}

func TestOneIdIsTakenByOneOfMany(t *testing.T) {
	w := newWorld(t)
	c := w.tenant("taken")
	calls := c.through()
	var mu sync.Mutex
	var taken, refused int
	together(t, 20, func(int) error {
		_, err := calls.Create(context.Background(), "", "shop")
		mu.Lock()
		defer mu.Unlock()
		var known *appplan.Error
		switch {
		case err == nil:
			taken++
		case errors.As(err, &known) && known.Code == appplan.Conflict:
			refused++
		default:
			return err
		}
		return nil
	})
	if taken != 1 || refused != 19 {
		t.Errorf("%d took the id, %d were refused", taken, refused)
	}
}

func TestScalesAndResizesOfOneAppAreAllKept(t *testing.T) {
	w := newWorld(t)
	w.class("grows", true)
	c := w.tenant("mixed")
	calls, ctx := c.through(), context.Background()
	if _, err := calls.Create(ctx, "", "shop"); err != nil {
		t.Fatal(err)
	}
	file := appplan.Source{JSON: true, Text: []byte(`{"app": {"image": "shop:1"}, "volumes": [{"name": "a", "mountPath": "/a", "size": 1, "accessMode": "rwx"},
		{"name": "b", "mountPath": "/b", "size": 1, "accessMode": "rwx"}, {"name": "c", "mountPath": "/c", "size": 1, "accessMode": "rwx"}]}`)}
	if _, err := calls.Deploy(ctx, "", "shop", file); err != nil {
		t.Fatal(err)
	}
	names := []string{"a", "b", "c"}
	for _, name := range names {
		w.claim("mixed", "shop", name, 1, corev1.ReadWriteMany, "grows")
	}
	together(t, 4, func(i int) error {
		if i == 3 {
			_, err := calls.Scale(ctx, "", "shop", 7)
			return err
		}
		_, err := calls.Resize(ctx, "", "shop", names[i], int64(10+i))
		return err
	})
	spec := w.app("mixed", "shop").Spec
	if *spec.Replicas != 7 || spec.Volumes[0].SizeGi != 10 || spec.Volumes[1].SizeGi != 11 || spec.Volumes[2].SizeGi != 12 {
		t.Errorf("ended as %+v", spec)
	}
}
