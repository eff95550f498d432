package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/testkit"
	"tarn.dev/tarn/internal/volume"
)

// whatIs returns the objects of Tarn: one provisioner, and what the changes add.
func whatIs(changes ...func(*installed)) *installed {
	in := &installed{provisioners: []pavv1.PavProvisioner{*testkit.Provisioner("shelf")}}
	for _, change := range changes {
		change(in)
	}
	return in
}

// made adds a volume of claim shop/data, with its record.
func made(changes ...testkit.With[*corev1.PersistentVolume]) func(*installed) {
	return func(in *installed) {
		record := testkit.Record(testkit.Claim("shop", "data", "u", "shelf"), "shelf", tarnv1.VolumeCreated)
		in.records = append(in.records, *record)
		in.volumes = append(in.volumes, *testkit.Volume(record, changes...))
	}
}

func wasReleased(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased }

// hasFailed makes a volume one whose claim is gone and whose reclaiming failed.
func hasFailed(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeFailed }

func retained(v *corev1.PersistentVolume) {
	metav1.SetMetaDataAnnotation(&v.ObjectMeta, volume.AnnProvisionedBy, "shelf")
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
}

func held(v *corev1.PersistentVolume) { volume.Hold(v, "72h") }

func free(v *corev1.PersistentVolume) {
	v.Spec.ClaimRef, v.Status.Phase = nil, corev1.VolumeAvailable
}

func spare(v *corev1.PersistentVolume) {
	free(v)
	metav1.SetMetaDataAnnotation(&v.ObjectMeta, tarnv1.AnnotationPoolUID, "set-uid")
}

// surplus makes a volume a spare that its pool has given to the claim that does not exist.
func surplus(v *corev1.PersistentVolume) {
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: Namespace, Name: "pool-set-uid-surplus", UID: "set-uid"}
}

// protectedVolume adds the label that protects a volume from deletion.
func protectedVolume(v *corev1.PersistentVolume) {
	v.Labels = map[string]string{tarnv1.LabelDeletionProtection: "true"}
}

// provisioned makes a volume one that a provisioner has created.
func provisioned(v *corev1.PersistentVolume) {
	metav1.SetMetaDataAnnotation(&v.ObjectMeta, volume.AnnProvisionedBy, "shelf")
}

func deleted(v *corev1.PersistentVolume) { v.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

// inClaim binds a volume to another claim than shop/data.
func inClaim(namespace, name string) testkit.With[*corev1.PersistentVolume] {
	return func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name = namespace, name }
}

func foreign(v *corev1.PersistentVolume) { v.Spec.CSI.Driver, v.Name = "other.example.org", "theirs" }

func pooled(in *installed) {
	in.pools = append(in.pools, tarnv1.PersistentVolumeSet{ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: "set-uid"}})
}

// inPhase sets the phase of the last volume's record. noVolume removes that volume itself.
func inPhase(phase tarnv1.VolumePhase, noVolume ...bool) func(*installed) {
	return func(in *installed) {
		in.records[len(in.records)-1].Status.Phase = phase
		if len(noVolume) > 0 {
			in.volumes = nil
		}
	}
}

func staged(in *installed) {
	in.stages = append(in.stages, tarnv1.PavStage{Spec: tarnv1.PavStageSpec{VolumeName: "pvc-u", NodeName: "n1"}})
}

// forgotten removes the record, as if an earlier Tarn had left the volume behind.
func forgotten(in *installed) {
	in.volumes[0].Annotations = map[string]string{tarnv1.AnnotationRecord: string(in.records[0].UID)}
	in.records = nil
}

// ownedBy adds an owner to a claim.
func ownedBy(kind string, uid types.UID) testkit.With[*corev1.PersistentVolumeClaim] {
	return func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{Kind: kind, UID: uid}}
	}
}

func abandoned(in *installed) { in.abandoned = true }

func ended(in *installed) { in.ended = true }

// runs sets the arguments of the controller's Deployment.
func runs(args ...string) func(*installed) {
	return func(in *installed) { in.alone = substitutes(append([]string{"controller"}, args...)) }
}

func TestWhatIsInUseIsInTheWayOfUninstalling(t *testing.T) {
	inTarns := func(name string, changes ...testkit.With[*corev1.PersistentVolumeClaim]) func(*installed) {
		return func(in *installed) {
			in.claims = append(in.claims, *testkit.Claim(Namespace, name, "c", "shelf", changes...))
		}
	}
	for _, c := range []struct {
		name string
		in   *installed
		keep bool
		// want is a part of the message, remedy of what to do; both are empty for no blocker.
		want, remedy string
	}{
		{"nothing but a provisioner", whatIs(), false, "", ""},
		{"a volume on a node", whatIs(staged), false, "in use on node n1", "tarn explain volume pvc-u"},
		{"a volume on a node, though volumes are kept", whatIs(staged), true, "in use on node n1", "tarn explain volume pvc-u"},
		{"a bound volume", whatIs(made()), false, "belongs to claim shop/data", "kubectl delete pvc -n shop data"},
		{"a bound volume that is kept", whatIs(made()), true, "", ""},
		{"a volume kept by its policy", whatIs(made(wasReleased, retained)), false, "kept by its policy", "kubectl patch pv pvc-u"},
		{"a volume written by hand", whatIs(made(wasReleased, retained, func(v *corev1.PersistentVolume) { v.Annotations = nil })), false, "written by hand", "kubectl delete pv pvc-u"},
		{"a volume in the trash", whatIs(made(wasReleased, held)), false, "in the trash", "tarn trash purge pvc-u --yes"},
		{"a volume in the trash that is kept", whatIs(made(wasReleased, held)), true, "", ""},
		{"a volume of another driver in the trash", whatIs(made(foreign, wasReleased, held), func(in *installed) { in.records = nil }), false, "in the trash", "tarn undelete volume theirs"},
		{"a bound volume of another driver, held", whatIs(made(foreign, held), func(in *installed) { in.records = nil }), false, "", ""},
		{"a volume written by hand that could not be recycled", whatIs(made(hasFailed, func(v *corev1.PersistentVolume) { v.Annotations = nil })), false, "written by hand", "kubectl delete pv pvc-u"},
		{"a volume that is being destroyed", whatIs(made(wasReleased, provisioned)), false, "", ""},
		{"a volume whose destruction is tried again", whatIs(made(hasFailed, provisioned)), false, "", ""},
		{"a volume that could not be recycled", whatIs(made(hasFailed, retained)), false, "kept by its policy", "kubectl patch pv pvc-u"},
		{"a volume whose record went with an earlier Tarn", whatIs(made(wasReleased, provisioned), forgotten), false, "no record says how to destroy", "kubectl delete pv pvc-u"},
		{"a bound volume whose record went", whatIs(made(), forgotten), false, "belongs to claim shop/data", "kubectl delete pvc -n shop data"},
		{"a free volume", whatIs(made(free)), false, "is free", "kubectl delete pv pvc-u"},
		{"a free volume that no pool has made", whatIs(made(free), pooled), false, "is free", "kubectl delete pv pvc-u"},
		{"a spare of a pool", whatIs(made(spare), pooled), false, "", ""},
		{"a protected spare of a pool", whatIs(made(spare, protectedVolume), pooled), false, "pvc-u is protected from deletion", "kubectl label pv pvc-u tarn.dev/deletion-protection-"},
		{"a protected volume that would be destroyed", whatIs(made(wasReleased, protectedVolume)), false, "pvc-u is protected from deletion", "kubectl label pv pvc-u"},
		{"a protected volume that could not be destroyed before", whatIs(made(hasFailed, protectedVolume)), false, "pvc-u is protected from deletion", "kubectl label pv pvc-u"},
		{"a protected volume that is being deleted", whatIs(made(wasReleased, protectedVolume, deleted)), false, "pvc-u is protected from deletion", "kubectl label pv pvc-u"},
		{"a protected volume that its pool has given up", whatIs(made(spare, protectedVolume, surplus, wasReleased), pooled), false, "pvc-u is protected from deletion", "kubectl label pv pvc-u"},
		{"a protected volume in the trash", whatIs(made(wasReleased, held, protectedVolume)), false, "pvc-u is protected from deletion", "kubectl label pv pvc-u"},
		{"a protected volume whose record went", whatIs(made(wasReleased, protectedVolume), forgotten), false, "pvc-u is protected from deletion", "kubectl label pv pvc-u"},
		{"a protected volume that is bound", whatIs(made(protectedVolume)), false, "belongs to claim shop/data", "kubectl delete pvc -n shop data"},
		{"a protected volume that is kept", whatIs(made(wasReleased, protectedVolume)), true, "", ""},
		{"a bound volume that somebody has deleted", whatIs(made(deleted)), false, "belongs to claim shop/data", "kubectl delete pvc -n shop data"},
		{"a free volume that somebody has deleted", whatIs(made(free, deleted)), false, "", ""},
		{"a spare of a pool that leaves its own", whatIs(made(spare), pooled, func(in *installed) { in.pools[0].Annotations = map[string]string{tarnv1.AnnotationOrphan: "true"} }), false, "is free", "kubectl delete pv pvc-u"},
		{"a spare that its pool has given up", whatIs(made(spare, surplus)), false, "", ""},
		{"a volume being made", whatIs(made(), func(in *installed) { in.volumes = nil }), false, "is being made for claim shop/data", "tarn explain claim shop/data"},
		{"a volume being undone", whatIs(made(), func(in *installed) { in.volumes, in.records[0].Status.Phase = nil, tarnv1.VolumeUndoing }), false, "", ""},
		{"a volume being made, though volumes are kept", whatIs(made(), inPhase(tarnv1.VolumeCreating, true)), true, "is being made for claim shop/data", "tarn explain claim shop/data"},
		{"one that nobody goes on making, where volumes are kept", whatIs(made(), inPhase(tarnv1.VolumeCreating, true), abandoned), true, "", ""},
		{"one whose controller this has ended, where volumes are kept", whatIs(made(), inPhase(tarnv1.VolumeCreating, true), ended), true, "", ""},
		{"a volume being undone, though volumes are kept", whatIs(made(), inPhase(tarnv1.VolumeUndoing, true)), true, "", ""},
		{"a volume being destroyed, though volumes are kept", whatIs(made(wasReleased, provisioned), inPhase(tarnv1.VolumeDeleting)), true, "", ""},
		{"a volume a plugin is making", whatIs(func(in *installed) { in.claims = append(in.claims, *testkit.Claim("shop", "folder", "c", "x")) }), true, "for claim shop/folder", "wait"},
		{"a scrub", whatIs(inTarns("scrub-v", ownedBy("PersistentVolume", "v"))), false, "belongs to a volume that is being recycled", "wait"},
		{"a filler of a pool", whatIs(inTarns("pool-set-uid-1", ownedBy("PersistentVolumeSet", "set-uid")), pooled), false, "", ""},
		{"somebody's claim in Tarn's namespace", whatIs(made(inClaim(Namespace, "data"))), false, "belongs to claim tarn-system/data", "kubectl delete pvc -n tarn-system data"},
		{"somebody's claim in Tarn's namespace, beside a pool", whatIs(made(inClaim(Namespace, "data")), pooled), false, "belongs to claim tarn-system/data", "kubectl delete pvc -n tarn-system data"},
		{"somebody's claim that is named as a scrub", whatIs(made(inClaim(Namespace, "scrub-brush")), pooled), false, "belongs to claim tarn-system/scrub-brush", "kubectl delete pvc -n tarn-system scrub-brush"},
		{"somebody's claim that is named as a filler", whatIs(made(inClaim(Namespace, "pool-of-data")), pooled), false, "belongs to claim tarn-system/pool-of-data", "kubectl delete pvc -n tarn-system pool-of-data"},
		{"somebody's claim with the very name of a filler", whatIs(made(inClaim(Namespace, "pool-set-uid-1")), pooled, func(in *installed) {
			in.strangers = []string{"pool-set-uid-1"}
		}), false, "belongs to claim tarn-system/pool-set-uid-1", "kubectl delete pvc -n tarn-system pool-set-uid-1"},
		{"a folder being made for a claim that is named as a scrub", whatIs(inTarns("scrub-brush")), true, "for claim tarn-system/scrub-brush", "or delete it"},
		{"the claim of a pool's filler", whatIs(made(inClaim(Namespace, "pool-set-uid-1")), pooled), false, "", ""},
		{"a volume being made for somebody's claim in Tarn's namespace", whatIs(made(), pooled, func(in *installed) {
			in.volumes, in.records[0].Spec.Claim.Namespace = nil, Namespace
		}), false, "is being made for claim tarn-system/data", "tarn explain claim tarn-system/data"},
		{"a folder being made for somebody's claim in Tarn's namespace", whatIs(inTarns("data")), true, "for claim tarn-system/data", "or delete it"},
		{"a protected pool", whatIs(pooled, func(in *installed) { in.pools[0].Labels = map[string]string{tarnv1.LabelDeletionProtection: "true"} }), false, "protected from deletion", "kubectl label pvset fast"},
		{"a pool of a Tarn that is gone", whatIs(pooled, abandoned), false, "no controller of Tarn works", "install Tarn again"},
		{"a pool of a Tarn that is gone, whose volumes are kept", whatIs(pooled, made(spare), abandoned), true, "", ""},
		{"a volume that nobody destroys", whatIs(made(wasReleased, provisioned), abandoned), false, "no controller of Tarn works", "--keep-volumes"},
		{"a volume on a node of a Tarn that is gone", whatIs(staged, abandoned), true, "in use on node n1", "install Tarn again"},
		{"a stage that was deleted under a volume in use, of a Tarn that is gone", whatIs(staged, abandoned, func(in *installed) {
			in.stages[0].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}), true, "in use on node n1", "delete the pods that use it, and install Tarn again when their containers have ended, so that it unstages the volume"},
		{"a volume that no plugin goes on making", whatIs(inTarns("pool-u-1", ownedBy("PersistentVolumeSet", "u")), abandoned), true, "", ""},
		{"a Tarn that binds", whatIs(runs("--controllers=*,-protect")), false, "without Tarn no controller would", "remove -persistentvolume-binder-controller from"},
		{"a Tarn that protects", whatIs(runs("--controllers=*", "--controllers=-bind")), true, "keep their finalizer", "remove -persistentvolumeclaim-protection-controller and"},
		{"a Tarn that leaves both to Kubernetes", whatIs(runs("--controllers=*,-bind,-protect", "--controllers=bind")), false, "", ""},
		{"nothing, of a Tarn that is gone", whatIs(abandoned), false, "", ""},
		{"an application", whatIs(application), false, "application shop/web is deployed", "kubectl delete app -n shop web, which deletes its volumes too, except those to preserve; to keep their data: --keep-volumes"},
		{"an application whose volumes are kept", whatIs(application), true, "application shop/web is deployed", preserving + " && kubectl delete app -n shop web"},
		{"an application whose spec does not say so", whatIs(application, func(in *installed) {
			in.apps[0].Spec.Volumes = []tarnv1.AppVolume{{Name: "data"}, {Name: "kept", PreserveOnDelete: true}, {Name: "more"}}
		}), true, "application shop/web is deployed", `kubectl patch app -n shop web --type=json -p '[{"op": "add", "path": "/spec/volumes/0/preserveOnDelete", "value": true}, ` +
			`{"op": "add", "path": "/spec/volumes/2/preserveOnDelete", "value": true}]' && ` + preserving + " && kubectl delete app -n shop web"},
		{"an application that is being deleted", whatIs(application, ending), true, "application shop/web is being deleted", "wait until that is done"},
		{"an application of a Tarn that is gone", whatIs(application, abandoned), false, "application shop/web is deployed", "install Tarn again"},
		{"an application of a Tarn that is gone, whose volumes are kept", whatIs(application, abandoned), true, "application shop/web is deployed", preserving + " && kubectl delete app -n shop web --wait=false"},
		{"one that is being deleted, of a Tarn that is gone", whatIs(application, ending, abandoned), false, "application shop/web is being deleted", "which deletes the volumes too"},
		{"one that nobody ends, whose volumes are kept", whatIs(application, ending, abandoned), true, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := planUninstall(c.in, c.keep).blockers
			if c.want == "" {
				if len(got) > 0 {
					t.Errorf("got %+v, want nothing in the way", got)
				}
				return
			}
			if len(got) != 1 || !strings.Contains(got[0].what, c.want) || !strings.Contains(got[0].remedy, c.remedy) {
				t.Errorf("got %+v, want %q with %q", got, c.want, c.remedy)
			}
		})
	}
}

// preserving is the command that preserves the volumes of application shop/web.
const preserving = "kubectl annotate pvc --overwrite -n shop -l tarn.dev/app=web tarn.dev/preserve-on-delete=true"

func application(in *installed) {
	in.apps = append(in.apps, tarnv1.App{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}})
}

func ending(in *installed) {
	now := metav1.Now()
	in.apps[0].DeletionTimestamp = &now
}

func TestAnApplicationThatNobodyEndsTakesItsVolumesWhenTarnComesBack(t *testing.T) {
	got := planUninstall(whatIs(application, ending, staged, abandoned), true).blockers
	if len(got) != 2 || !strings.Contains(got[1].remedy, "before you install it, keep them: "+preserving) {
		t.Errorf("got %+v, want how its volumes are kept", got)
	}
}

func TestStepsComeInTheirOrderAndOnlyWhereThereIsSomethingToDo(t *testing.T) {
	for _, c := range []struct {
		name string
		in   *installed
		keep bool
		want string
	}{
		{"nothing left", &installed{}, false, "controllers rest"},
		{"a provisioner", whatIs(), false, "controllers provisioners rest"},
		{"a pool and its spares", whatIs(made(spare), pooled), false, "pools destruction controllers provisioners rest"},
		{"a volume that is being destroyed", whatIs(made(wasReleased, provisioned)), false, "destruction controllers provisioners rest"},
		{"a pool, and nothing to keep", whatIs(made(spare), pooled, func(in *installed) {
			in.records[0].Spec.Claim.Namespace, in.records[0].Spec.Claim.Name = Namespace, "pool-set-uid-1"
		}), true, "pools controllers provisioners rest"},
		{"a spare that its pool has given up, which is gone", whatIs(made(spare, surplus)), true, "pools controllers volumes provisioners rest"},
		{"one that is protected now", whatIs(made(spare, surplus, protectedVolume)), true, "controllers volumes provisioners rest"},
		{"a volume that is kept", whatIs(made()), true, "controllers volumes provisioners rest"},
		{"a volume under destruction, though volumes are kept", whatIs(made(wasReleased, provisioned), inPhase(tarnv1.VolumeDeleting)), true, "destruction controllers volumes provisioners rest"},
		{"a volume being undone, though volumes are kept", whatIs(made(), inPhase(tarnv1.VolumeUndoing, true)), true, "destruction controllers volumes provisioners rest"},
		{"a spare under destruction, which is waited for once", whatIs(made(spare, surplus), inPhase(tarnv1.VolumeDeleting)), true, "pools controllers volumes provisioners rest"},
		{"one under destruction whose controller is gone", whatIs(made(wasReleased, provisioned), inPhase(tarnv1.VolumeDeleting), abandoned), true, "controllers volumes provisioners rest"},
		{"one whose destruction began as the controllers ended", whatIs(made(wasReleased, provisioned), inPhase(tarnv1.VolumeDeleting), ended), true, "controllers volumes provisioners rest"},
		{"a pool whose controller is gone", whatIs(made(spare), pooled, abandoned), true, "controllers volumes provisioners rest"},
		{"a pool alone whose controller is gone", whatIs(pooled, abandoned), true, "controllers volumes provisioners rest"},
		{"an application that nobody ends", whatIs(application, ending, abandoned), true, "controllers volumes provisioners rest"},
		{"another driver's, held", whatIs(made(foreign, held), func(in *installed) { in.records = nil }), false, "controllers volumes provisioners rest"},
	} {
		var got []string
		for _, s := range planUninstall(c.in, c.keep).steps {
			got = append(got, string(s.step))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestThePlanNamesWhoseDestructionIsWaitedFor(t *testing.T) {
	// another adds a volume like the first one, of claim shop/NAME.
	another := func(name string) func(*installed) {
		return func(in *installed) {
			record := testkit.Record(testkit.Claim("shop", name, types.UID(name), "shelf"), "shelf", tarnv1.VolumeDeleting)
			in.records = append(in.records, *record)
		}
	}
	destroyed := []func(*installed){made(wasReleased, provisioned), inPhase(tarnv1.VolumeDeleting)}
	for _, c := range []struct {
		name, want string
		in         *installed
	}{
		{"one", "wait until 1 volumes are destroyed whose claims are gone: pvc-u of shop/data", whatIs(destroyed...)},
		{"as many as can be read", "wait until 7 volumes are destroyed whose claims are gone: pvc-u of shop/data, pvc-a of shop/a, pvc-b of shop/b, pvc-c of shop/c, pvc-d of shop/d and 2 more",
			whatIs(append(destroyed, another("a"), another("b"), another("c"), another("d"), another("e"), another("f"))...)},
		{"one that pools have given up", "wait until 1 spare volumes are destroyed that pools have released: pvc-u", whatIs(made(spare, surplus))},
	} {
		if first := planUninstall(c.in, true).steps[0]; first.what != c.want {
			t.Errorf("%s: %q, want %q", c.name, first.what, c.want)
		}
	}
	theirs := whatIs(made(wasReleased, provisioned), func(in *installed) { in.records = nil })
	if first, want := planUninstall(theirs, false).steps[0], "wait until 1 volumes are destroyed whose claims are gone: pvc-u of shop/data"; first.what != want {
		t.Errorf("one without a record: %q, want %q", first.what, want)
	}
}

func TestWhatIsHalfMadeOrHalfDestroyedIsNotSaidToBeKept(t *testing.T) {
	const kept = "release %s volumes: their data stays, with reclaim policy Retain"
	const named = "; 1 of them are only partly made or destroyed, and no controller will finish that, so delete their storage yourself: pvc-u"
	for _, c := range []struct {
		name, number, rest string
		in                 *installed
	}{
		{"a whole one", "1", "", whatIs(made(wasReleased, provisioned))},
		{"a whole one whose record was deleted, as kubectl does a second time", "1", "", whatIs(made(wasReleased, provisioned), abandoned, func(in *installed) {
			in.records[0].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		})},
		{"under destruction", "0", "", whatIs(made(wasReleased, provisioned), inPhase(tarnv1.VolumeDeleting))},
		{"under destruction by nobody", "0", named, whatIs(made(wasReleased, provisioned), inPhase(tarnv1.VolumeDeleting), abandoned)},
		{"under destruction as the controllers ended", "0", named, whatIs(made(wasReleased, provisioned), inPhase(tarnv1.VolumeDeleting), ended)},
		{"being made by nobody", "0", named, whatIs(made(), inPhase(tarnv1.VolumeCreating, true), abandoned)},
		{"being undone by nobody", "0", named, whatIs(made(), inPhase(tarnv1.VolumeUndoing, true), abandoned)},
		{"made, with a volume that was not written yet", "0", named, whatIs(made(), inPhase(tarnv1.VolumeCreated, true), abandoned)},
		{"not begun", "0", "", whatIs(made(), inPhase(tarnv1.VolumePending, true), abandoned)},
	} {
		want := strings.Replace(kept, "%s", c.number, 1) + c.rest
		steps := planUninstall(c.in, true).steps
		if i := slices.IndexFunc(steps, func(s plannedStep) bool { return s.step == stepVolumes }); i < 0 || steps[i].what != want {
			t.Errorf("%s: got %+v, want %q", c.name, steps, want)
		}
	}
}

func TestWhatRunsInThePlaceOfKubernetesIsReadFromTheArguments(t *testing.T) {
	for args, want := range map[string]string{
		"":                "",
		"--controllers=*": "bind protect",
		"--controllers=accept,bind --controllers=-protect": "bind",
		"--leader-elect --workers 3 --controllers *,-bind": "protect",
		"--controllers=*,-bind,-protect --v=1":             "",
		"--metrics-secure --controllers=protect -v 2":      "protect",
	} {
		if got := strings.Join(substitutes(append([]string{"controller"}, strings.Fields(args)...)), " "); got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}
