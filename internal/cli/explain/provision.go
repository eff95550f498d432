package explain

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	"tarn.dev/tarn/internal/steppod"
	"tarn.dev/tarn/internal/suggest"
	"tarn.dev/tarn/internal/volume"
)

// noProvisioner is the provisioner of a class whose volumes are written by hand.
const noProvisioner = "kubernetes.io/no-provisioner"

// provisioned is about a claim for which a provisioner must create a volume, and has not begun.
func (s *story) provisioned(c *claimView) {
	name := provisionerOf(c.Claim, c.Class)
	s.add(Link{Object: Object{Kind: storageClass, Name: c.Class.Name}, State: "makes volumes", Message: "by provisioner " + name})
	if p := c.Volume.Provisioner; p != nil {
		s.byPods(c, p)
		return
	}
	if _, served := volume.DriverFor(c.Class.Provisioner); !served {
		s.add(Link{Object: Object{Kind: "provisioner", Name: name}, State: "missing", Message: "names that begin with kubernetes.io/ belong to plugins that Kubernetes has removed"})
		s.blame("its provisioner %s is no longer served", name)
		s.nearest(c, "when a free PersistentVolume of class "+c.Class.Name+" fits")
		return
	}
	if !strings.ContainsAny(name, "./") && c.Volume.Driver == nil {
		s.provisionerMissing(c, name)
		return
	}
	s.byOthers(c, name)
}

// provisionerMissing is about a class whose provisioner does not exist.
func (s *story) provisionerMissing(c *claimView, name string) {
	if s.view.unknown(pavProvisioner, "", name) || s.view.unknown(csiDriver, "", name) {
		s.blame("its provisioner %s has not started", name)
		return
	}
	link := s.add(Link{Object: Object{Kind: pavProvisioner, Name: name}, State: "missing", Next: "when PavProvisioner " + name + " is created"})
	s.blame("there is no PavProvisioner %q, nor a CSI driver of that name", name)
	misspelt(c, link, name)
}

// misspelt offers an existing provisioner whose name is similar to the one that a class names.
func misspelt(c *claimView, link *Link, name string) {
	names := []string{hostPath}
	for i := range c.Provisioners {
		names = append(names, c.Provisioners[i].Name)
	}
	if like := suggest.Near(name, names); len(like) > 0 {
		link.Message = strings.TrimPrefix(link.Message+"; there is "+strings.Join(like, ", "), "; ")
		link.offer = "the command creates the class again with " + like[0]
		link.Command = replacing(Object{Kind: storageClass, Name: c.Class.Name}, "storageclass", "merge", fmt.Sprintf(`{"provisioner":%q}`, like[0]))
	}
}

// byOthers is about a provisioner that is not a PavProvisioner.
func (s *story) byOthers(c *claimView, name string) {
	o := Object{Kind: "provisioner", Name: name}
	said := c.Events
	if name != hostPath { // a binder also says so of a class that it has not seen yet
		said = slices.DeleteFunc(slices.Clone(said), ofBinder)
	}
	failed := newest(said, "ProvisioningFailed")
	if name == hostPath && failed != nil && LastSeen(failed).Before(latest(c.Class)) {
		failed = nil // it was said of an earlier class of that name
	}
	switch {
	case name == hostPath && c.Class.Provisioner == hostPath && s.refuses(c, o, failed): // the class may have been created again after the claim
	case name == hostPath && failed != nil && failed.Type == corev1.EventTypeWarning:
		s.add(Link{Object: o, State: "has failed", Since: moment(LastSeen(failed)), Reason: failed.Reason, Message: failed.Message,
			Next: "when that is fixed: tarn controller then continues by itself; " + s.lastTry(failed)})
		s.blame("provisioner %s cannot make its volume: %s", name, failed.Message)
		s.controllerSilent("", writtenAt(c.Claim))
	case failed != nil && failed.Type == corev1.EventTypeWarning:
		s.add(Link{Object: o, State: "has failed", Since: moment(LastSeen(failed)), Reason: failed.Reason, Message: failed.Message, Next: "when the provisioner retries; only its log shows when"})
		s.blame("provisioner %s cannot make its volume: %s", name, failed.Message)
	case volume.ProvisionerOf(c.Claim) == "":
		s.binderSilent(c, "provisioner "+name+" has to be called")
	case name == hostPath:
		s.byHostPath(c, o)
	case c.Volume.Driver == nil && !s.view.unknown(csiDriver, "", name):
		link := s.add(Link{Object: o, State: "not registered", Message: "there is no CSIDriver of that name and no Event from it, so it is probably not installed", Next: "when the provisioner is installed and responds"})
		s.blame("provisioner %s has not responded, and it is not registered", name)
		misspelt(c, link, name)
	default:
		link := s.add(Link{Object: o, State: "called", Next: "when the provisioner responds; its own log says more"})
		if e := newest(c.Events, "Provisioning", binderWaits); e != nil {
			link.Since, link.Message = moment(LastSeen(e)), e.Message
		}
		s.awaits("provisioner %s was called and has not made the volume yet", name)
	}
}

// byPods is about a PavProvisioner that has no record of the claim.
func (s *story) byPods(c *claimView, p *pavv1.PavProvisioner) {
	if s.provisionerUnusable(p, true) {
		return
	}
	o := Object{Kind: pavProvisioner, Name: p.Name}
	switch limit, beyond := volume.BeyondLimit(c.Claim); {
	case s.refuses(c, o, nil):
	case beyond:
		request := volume.Request(c.Claim)
		link := s.add(Link{Object: o, State: "refuses", Next: "when the claim is created again with a limit of at least its request, or without a limit",
			Message: fmt.Sprintf("spec.resources.requests.storage of the claim is %s, and its spec.resources.limits.storage is %s", request.String(), limit.String())})
		s.anew(c, link, "json", `[{"op":"remove","path":"/spec/resources/limits"}]`, "without a limit")
		s.blame("it requests %s, more than its own limit of %s", request.String(), limit.String())
	case volume.ProvisionerOf(c.Claim) == "":
		s.binderSilent(c, "PavProvisioner "+p.Name+" has to be called")
	case secretError(c) != "":
		s.blame("%s", secretError(c))
		s.add(Link{Object: o, State: "refuses", Message: s.cause, Next: "when the claim's annotation is corrected, or the class is created again"})
	case steppod.UnreadSecret(p, c.Class) != "":
		s.blame("%s", steppod.UnreadSecret(p, c.Class))
		s.add(Link{Object: o, State: "refuses", Message: s.cause, Next: "when the class is created again without that parameter, or a template reads it"})
	case volume.HasSource(c.Claim) && newest(c.Events, "ProvisioningFailed") != nil:
		failed := newest(c.Events, "ProvisioningFailed")
		s.add(Link{Object: o, State: "waits", Since: moment(LastSeen(failed)), Reason: failed.Reason, Message: failed.Message, Next: "when the data source can be copied"})
		s.blame("PavProvisioner %s cannot make its volume: %s", p.Name, failed.Message)
	default:
		s.add(Link{Object: o, State: "accepted", Message: "it is responsible for the volume, but no PavVolume " + c.Volume.Name + " records a start"})
		s.controllerSilent("PavProvisioner "+p.Name+" has to make its volume", latest(c.Claim, p))
	}
}

// secretError says why the class names no Secret for the claim; empty if it does, or needs none.
func secretError(c *claimView) string {
	if _, err := steppod.SecretOf(c.Class, "pvc-"+string(c.Claim.UID), c.Claim); err != nil {
		return err.Error()
	}
	return ""
}

// populated is about a claim whose data source is of a kind that Tarn does not know.
func (s *story) populated(c *claimView) {
	from := c.Claim.Spec.DataSourceRef
	s.add(Link{Object: Object{Kind: Kind(from.Kind), Namespace: cmp.Or(ptr.Deref(from.Namespace, ""), c.Claim.Namespace), Name: from.Name}, State: "source",
		Message: "it is the claim's data source, so Tarn leaves the claim to the volume populator of this kind",
		Next:    "when the populator gives the claim its volume"})
	s.blame("the volume populator of %s %s has not given it a volume", from.Kind, from.Name)
}

// refuses reports what a provisioner of Tarn's never serves, and says whether the claim or its
// class requests that. told is the Event that reported it, nil for none. The fields are read again
// here because Events expire. Most of them cannot be changed in an existing object.
func (s *story) refuses(c *claimView, o Object, told *corev1.Event) bool {
	claim, size, host := c.Claim, volume.Request(c.Claim), o.Name == hostPath
	if volume.ForPopulator(claim) {
		s.populated(c)
		return true
	}
	var parameters, paths, sources []string
	for _, name := range slices.Sorted(maps.Keys(c.Class.Parameters)) {
		if name != tarnv1.AnnotationRetention { // the trash's retention is allowed for every provisioner
			parameters = append(parameters, name)
			paths = append(paths, "/parameters/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
		}
	}
	if claim.Spec.DataSource != nil {
		sources = append(sources, "/spec/dataSource")
	}
	if claim.Spec.DataSourceRef != nil {
		sources = append(sources, "/spec/dataSourceRef")
	}
	const without = "without it"
	refused := []struct {
		is               bool
		what, field, how string
		paths            []string // to remove; for none, no command helps
		ofClass          bool
	}{
		{volume.HasSource(claim) && (c.Volume.Provisioner == nil || !steppod.ReadsSource(c.Volume.Provisioner)), "from a data source", "spec.dataSource", without, sources, false},
		{claim.Spec.Selector != nil, "from a selector", "spec.selector", without, []string{"/spec/selector"}, false},
		{volume.AttributesClassOf(claim) != "", "from a VolumeAttributesClass", fmt.Sprintf("spec.volumeAttributesClassName %q", volume.AttributesClassOf(claim)), without,
			[]string{"/spec/volumeAttributesClassName"}, false},
		{host && len(c.Class.MountOptions) > 0, "with mount options", fmt.Sprintf("mountOptions %q", c.Class.MountOptions), "without them", []string{"/mountOptions"}, true},
		{host && size.CmpInt64(math.MaxInt64) > 0, "as large", "spec.resources.requests.storage " + size.String(), "with a smaller request", nil, false},
		{host && volume.ModeOf(claim) != corev1.PersistentVolumeFilesystem, "other than directories", fmt.Sprintf("spec.volumeMode %s", volume.ModeOf(claim)), "with volumeMode Filesystem",
			[]string{"/spec/volumeMode"}, false},
		{host && len(parameters) > 0, "with parameters", "parameters " + join(parameters), "without them", paths, true},
	}
	for _, r := range refused {
		if !r.is {
			continue
		}
		link, where := s.add(Link{Object: o, State: "refuses"}), "the claim"
		if told != nil {
			link.Since, link.Reason = moment(LastSeen(told)), told.Reason
		}
		var operations []string
		for _, path := range r.paths {
			operations = append(operations, fmt.Sprintf(`{"op":"remove","path":%q}`, path))
		}
		patch := "[" + strings.Join(operations, ",") + "]"
		switch {
		case r.ofClass:
			class := Object{Kind: storageClass, Name: c.Class.Name}
			where, link.Command = class.String(), replacing(class, "storageclass", "json", patch)
			link.offer = "the command creates the class again " + r.how + "; its claims and volumes are not affected"
		case len(r.paths) > 0:
			s.anew(c, link, "json", patch, r.how)
		}
		link.Next = fmt.Sprintf("when %s is created again %s: no retry can succeed", where, r.how)
		s.blame("%s makes no volumes %s, and %s has %s", o, r.what, where, r.field)
		return true
	}
	return false
}

// provisionerUnusable says whether a PavProvisioner cannot be used, and reports why. dynamic says
// that it should create volumes; otherwise it should only stage one.
func (s *story) provisionerUnusable(p *pavv1.PavProvisioner, dynamic bool) bool {
	o := Object{Kind: pavProvisioner, Name: p.Name}
	accepted := conditionIn(p.Status.Conditions, pavv1.ConditionAccepted)
	edit := kubectl("", "edit", "pavprovisioner", p.Name)
	switch {
	case p.DeletionTimestamp != nil:
		s.add(Link{Object: o, State: "being deleted", Since: moment(p.DeletionTimestamp.Time), Reason: accepted.Reason, Message: accepted.Message,
			Next: "when it has been deleted and created again"})
		s.blame("PavProvisioner %s is being deleted and makes no new volumes", p.Name)
	case dynamic && !slices.Contains(p.Spec.ProvisioningModes, pavv1.ModeDynamic):
		s.add(Link{Object: o, State: "not Dynamic", Message: "spec.provisioningModes does not contain Dynamic; add it, and spec.volumeCreation",
			Next: "when it has both", Command: edit})
		s.blame("PavProvisioner %s makes no volumes: spec.provisioningModes does not contain Dynamic", p.Name)
	case accepted.Type == "" || accepted.ObservedGeneration != p.Generation:
		s.add(Link{Object: o, State: "not validated yet", Since: moment(p.CreationTimestamp.Time)})
		s.controllerSilent("PavProvisioner "+p.Name+" has to be validated", writtenAt(p))
	case accepted.Status != metav1.ConditionTrue:
		s.add(Link{Object: o, State: "not accepted", Since: moment(accepted.LastTransitionTime.Time), Reason: accepted.Reason, Message: accepted.Message,
			Next: "when the PavProvisioner is corrected", Command: edit})
		s.blame("PavProvisioner %s is not accepted: %s", p.Name, accepted.Message)
	default:
		return false
	}
	return true
}

// hostPath is the provisioner inside Tarn's own controller, whose volumes are directories.
const hostPath = "tarn.dev/host-path"

// ofHostPath says whether that provisioner creates, or has created, a claim's volume.
func ofHostPath(c *claimView) bool { return provisionerOf(c.Claim, c.Class) == hostPath }

// byHostPath is about a claim for which the provisioner inside Tarn's controller was called. It has
// not reported an error.
func (s *story) byHostPath(c *claimView, o Object) {
	since := writtenAt(c.Claim)
	switch {
	case slices.Contains(c.Claim.Finalizers, tarnv1.FinalizerInProcess): // it marks a claim that it has begun
		link := s.add(Link{Object: o, State: "at work", Next: "when the directory is created, which takes longer on a slow disk"})
		if e := newest(c.Events, "Provisioning"); e != nil {
			link.Since, link.Message = moment(LastSeen(e)), e.Message
		}
		s.atWork("its volume", "is being made by "+o.Name, "is being made by "+o.Name, since)
	case s.young(since):
		s.add(Link{Object: o, State: "called", Next: "within moments"})
		s.controllerSilent("provisioner "+o.Name+" has to make its volume", since)
	default:
		s.add(Link{Object: o, State: "silent", Message: "it is part of tarn controller and works only if that runs with --host-path-root", Next: "when tarn controller runs with --host-path-root"})
		s.blame("provisioner %s has not started", o.Name)
		s.controllerSilent("", since)
	}
}

// lostFolder is about a claim whose volume, a directory, was removed by force. The directory stays
// on its node when the PersistentVolume is deleted.
func (s *story) lostFolder(c *claimView, link *Link) {
	name, size := c.Claim.Spec.VolumeName, volume.Request(c.Claim)
	link.Message = fmt.Sprintf("%s made it as a directory, and its data may still be in ROOT/%s on the node of tarn controller, "+
		"where ROOT is its --host-path-root (in an embedded cluster /var/lib/tarn-cluster/NAME/host-path)"+
		"; if it is, create PersistentVolume %s with local.path ROOT/%s, nodeAffinity to that node by label %s, annotations %s: %s and %s: the node's name, "+
		"capacity %s, accessModes %s, class %s, and claimRef of namespace %s, name %s and uid %s; if it is not, create it again from a backup",
		hostPath, name, name, name, corev1.LabelHostname, volume.AnnProvisionedBy, hostPath, tarnv1.AnnotationNode,
		size.String(), volume.AccessOf(c.Claim.Spec.AccessModes), volume.ClassOf(c.Claim), c.Object.Namespace, c.Object.Name, c.Claim.UID)
	if s.giveUp(c, link); link.Command != "" {
		link.offer += "; use it only if the data is gone or not needed: an existing directory stays, but no claim or volume records it"
	}
}
