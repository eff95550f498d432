package status

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	"tarn.dev/tarn/internal/cli/explain"
	"tarn.dev/tarn/internal/kube"
	"tarn.dev/tarn/internal/volume"
)

// patience is how long something may be in progress before it counts as a problem.
const patience = time.Minute

// judgement is a report while it is being built.
type judgement struct {
	*Report
	view *View
	// told are the volumes whose record is among the problems, by name. An object that waits for
	// one of them is not a second problem.
	told map[string]bool
	// stagesTold are the stages that are staged or among the problems, by name.
	stagesTold map[string]bool
}

// judge builds the report. It reads only the View.
func judge(v *View) *Report {
	j := &judgement{Report: &Report{Namespace: v.Namespace, Problems: []Problem{}}, view: v, told: map[string]bool{}, stagesTold: map[string]bool{}}
	if v.Namespace == "" {
		j.controller()
		j.workloads()
		j.nodes()
		j.provisioners()
		j.pools()
		j.records()
		j.volumes()
		j.stages()
	}
	j.unstaged()
	j.claims()
	j.apps()
	for _, u := range v.Unread {
		if v.Namespace == "" || !slices.Contains([]string{kindClass, kindEvent, kindPod}, u.Kind) { // a namespace's report needs no classes; Events and pods only add detail
			j.Unread = append(j.Unread, u)
		}
	}
	j.Healthy = len(j.Problems) == 0 && len(j.Unread) == 0
	j.Verdict = j.verdict()
	return j.Report
}

func (j *judgement) verdict() string {
	what := "tarn"
	if j.Namespace != "" {
		what = "namespace " + j.Namespace
	}
	switch n := len(j.Problems); {
	case n == 1:
		return what + " is not healthy: 1 problem"
	case n > 1:
		return fmt.Sprintf("%s is not healthy: %d problems", what, n)
	case len(j.Unread) > 0:
		return what + " cannot be assessed: you may not read all of it"
	}
	return what + " is healthy"
}

// wrong adds a problem.
func (j *judgement) wrong(o explain.Object, since time.Time, command, format string, args ...any) {
	p := Problem{Object: o, Message: fmt.Sprintf(format, args...), Command: command}
	if !since.IsZero() {
		p.Since = &since
	}
	j.Problems = append(j.Problems, p)
}

// lasting says whether something has been in progress for too long.
func (j *judgement) lasting(since time.Time) bool { return j.view.Now.Sub(since) > patience }

// waits adds a problem that explain tells more about.
func (j *judgement) waits(o explain.Object, since time.Time, format string, args ...any) {
	j.wrong(o, since, "tarn explain "+o.String(), format, args...)
}

func (j *judgement) controller() {
	v := j.view
	if slices.Contains(v.Missing, kindProvisioner) {
		j.wrong(explain.Object{Kind: "CustomResourceDefinition", Name: "pavprovisioners." + pavv1.Group}, time.Time{}, "helm install tarn charts/tarn", "Tarn is not installed in this cluster; docs/operations/install.md says what that needs")
		return
	}
	if v.hidden(kindLease) {
		return
	}
	leads, state, message := explain.Leader(v.Lease, v.Now)
	j.Controller = &Controller{Leads: leads, State: state}
	if l := v.Lease; l != nil {
		if l.Spec.HolderIdentity != nil {
			j.Controller.Holder = *l.Spec.HolderIdentity
		}
		if l.Spec.RenewTime != nil {
			j.Controller.Renewed = &l.Spec.RenewTime.Time
		}
	}
	if !leads && v.Lease != nil { // without a lease, a controller may run without --leader-elect
		o := explain.Object{Kind: kindLease, Namespace: v.System, Name: kube.ControllerName}
		j.wrong(o, time.Time{}, "kubectl -n "+o.Namespace+" get pods,lease", "no controller is the leader: %s", message)
	}
}

func (j *judgement) workloads() {
	for i := range j.view.Deployments.Items {
		d := &j.view.Deployments.Items[i]
		wanted := int32(1)
		if d.Spec.Replicas != nil {
			wanted = *d.Spec.Replicas
		}
		j.workload(Workload{"Deployment", d.Name, wanted, d.Status.ReadyReplicas, d.Status.UpdatedReplicas}, d)
	}
	for i := range j.view.DaemonSets.Items {
		d := &j.view.DaemonSets.Items[i]
		j.workload(Workload{"DaemonSet", d.Name, d.Status.DesiredNumberScheduled, d.Status.NumberReady, d.Status.UpdatedNumberScheduled}, d)
	}
}

func (j *judgement) workload(w Workload, o metav1.Object) {
	j.Workloads = append(j.Workloads, w)
	if w.Ready < w.Wanted {
		j.wrong(explain.Object{Kind: explain.Kind(w.Kind), Namespace: o.GetNamespace(), Name: w.Name}, time.Time{},
			"kubectl -n "+o.GetNamespace()+" get pods", "%d of %d pods are ready", w.Ready, w.Wanted)
	}
}

// nodes counts the nodes where the node agent has registered. A node without one is no problem: it
// may run no pod that uses Tarn's volumes.
func (j *judgement) nodes() {
	if j.view.hidden("CSINode") {
		return
	}
	j.Nodes = &Nodes{Total: len(j.view.Nodes.Items)}
	for i := range j.view.Nodes.Items {
		n := &j.view.Nodes.Items[i]
		registered := false
		for _, d := range n.Spec.Drivers {
			registered = registered || d.Name == tarnv1.ResultsDriver
		}
		if registered {
			j.Nodes.WithAgent++
		} else {
			j.Nodes.Without = append(j.Nodes.Without, n.Name)
		}
	}
	if j.Nodes.WithAgent == 0 && len(j.view.Provisioners.Items) > 0 {
		j.wrong(explain.Object{Kind: "CSIDriver", Name: tarnv1.ResultsDriver}, time.Time{}, "kubectl get csinodes",
			"Tarn's node agent runs on none of %d nodes, so Tarn makes and stages no volumes", j.Nodes.Total)
	}
}

func (j *judgement) provisioners() {
	volumes, failing := map[string]int{}, map[string]int{}
	for i := range j.view.Volumes.Items {
		if csi := j.view.Volumes.Items[i].Spec.CSI; csi != nil {
			volumes[csi.Driver]++
		}
	}
	for i := range j.view.Records.Items {
		if r := &j.view.Records.Items[i]; failure(r) != nil {
			failing[r.Spec.Provisioner.Name]++
		}
	}
	for i := range j.view.Provisioners.Items {
		p := &j.view.Provisioners.Items[i]
		o := explain.Object{Kind: kindProvisioner, Name: p.Name}
		c := meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionAccepted)
		current := c != nil && c.ObservedGeneration == p.Generation
		accepted := current && c.Status == metav1.ConditionTrue
		j.Provisioners = append(j.Provisioners, Provisioner{p.Name, accepted, volumes[p.Name], failing[p.Name]})
		describe := "kubectl describe pavprovisioner " + p.Name
		switch {
		case p.DeletionTimestamp != nil && j.lasting(p.DeletionTimestamp.Time):
			j.wrong(o, p.DeletionTimestamp.Time, describe, "it is being deleted, which completes when nothing that it made is left")
		case p.DeletionTimestamp != nil:
		case accepted:
			j.served(p)
		case current:
			j.wrong(o, c.LastTransitionTime.Time, describe, "it is not accepted: %s", c.Message)
		case j.lasting(p.CreationTimestamp.Time):
			j.wrong(o, p.CreationTimestamp.Time, describe, "no controller has validated its current spec")
		}
	}
}

// served adds a problem if no node serves a provisioner. If there is no node agent at all, nodes
// has reported that already.
func (j *judgement) served(p *pavv1.PavProvisioner) {
	c := meta.FindStatusCondition(p.Status.Conditions, pavv1.ConditionReady)
	nowhere := j.Nodes != nil && j.Nodes.WithAgent == 0
	if c != nil && c.Status == metav1.ConditionFalse && !nowhere && j.lasting(c.LastTransitionTime.Time) {
		j.wrong(explain.Object{Kind: kindProvisioner, Name: p.Name}, c.LastTransitionTime.Time, "kubectl describe pavprovisioner "+p.Name, "it is not ready: %s", c.Message)
	}
}

func (j *judgement) pools() {
	for i := range j.view.Pools.Items {
		p := &j.view.Pools.Items[i]
		s := &p.Status
		c := meta.FindStatusCondition(s.Conditions, tarnv1.ConditionReady)
		ready := c != nil && c.Status == metav1.ConditionTrue && s.ObservedGeneration == p.Generation
		j.Pools = append(j.Pools, Pool{p.Name, ready, s.UnboundReplicas, p.Spec.MinimumReplicas, s.CreatingReplicas, s.BoundReplicas, p.Spec.MaximumReplicas})
		o := explain.Object{Kind: explain.Set, Name: p.Name}
		switch {
		case p.DeletionTimestamp != nil && j.lasting(p.DeletionTimestamp.Time):
			j.waits(o, p.DeletionTimestamp.Time, "it is being deleted")
		case p.DeletionTimestamp != nil, ready:
		case c != nil && j.lasting(c.LastTransitionTime.Time):
			j.waits(o, c.LastTransitionTime.Time, "it is not ready: %s", c.Message)
		case c == nil && j.lasting(p.CreationTimestamp.Time):
			j.waits(o, p.CreationTimestamp.Time, "no controller has reconciled it")
		}
	}
}

// failure returns the last error of a record, nil if there is none.
func failure(r *tarnv1.PavVolume) *tarnv1.PavVolumeError {
	if e := r.Status.LastError; e != nil {
		return e
	}
	if r.Status.Expansion != nil {
		return r.Status.Expansion.LastError
	}
	return nil
}

func (j *judgement) records() {
	phases := counts{}
	claims := map[explain.Object]bool{}
	for i := range j.view.Claims.Items {
		c := &j.view.Claims.Items[i]
		claims[explain.Object{Kind: explain.Claim, Namespace: c.Namespace, Name: c.Name}] = true
	}
	for i := range j.view.Records.Items {
		r := &j.view.Records.Items[i]
		phases.add(cmp.Or(string(r.Status.Phase), string(tarnv1.VolumePending)), 0)
		// Users know the volume by its claim, as long as that exists.
		o := explain.Object{Kind: explain.Claim, Namespace: r.Spec.Claim.Namespace, Name: r.Spec.Claim.Name}
		if !claims[o] {
			o = explain.Object{Kind: explain.Volume, Name: r.Name}
		}
		switch e := failure(r); {
		case e != nil:
			j.waits(o, e.Time.Time, "%s by PavProvisioner %s has failed: %s", e.Step, r.Spec.Provisioner.Name, e.Message)
		case r.Status.Phase == tarnv1.VolumeDisputed:
			j.waits(o, time.Time{}, "PavProvisioner %s gave it the handle of another volume; an administrator has to decide", r.Spec.Provisioner.Name)
		default:
			continue
		}
		j.told[r.Name] = true
	}
	j.Records = phases.list()
}

func (j *judgement) stages() {
	phases := counts{}
	for i := range j.view.Stages.Items {
		g := &j.view.Stages.Items[i]
		phase := g.Status.Node.Phase
		state := cmp.Or(string(phase), string(tarnv1.StageWaiting))
		o := explain.Object{Kind: "PavStage", Name: g.Name}
		command := "tarn explain volume " + g.Spec.VolumeName
		before := len(j.Problems)
		where := fmt.Sprintf("volume %s on node %s", g.Spec.VolumeName, g.Spec.NodeName)
		switch status := g.Status.Pod; {
		case g.DeletionTimestamp != nil:
			state = "Ending"
			if j.lasting(g.DeletionTimestamp.Time) {
				j.wrong(o, g.DeletionTimestamp.Time, command, "%s has been unstaging for a long time: %s", where, cmp.Or(status.Message, g.Status.Node.Message, "no object says why"))
			}
		case phase == tarnv1.StageLost && g.Status.Node.Loss != nil:
			j.wrong(o, g.Status.Node.Loss.Time.Time, command, "%s is lost: %s", where, g.Status.Node.Loss.Message)
		case phase == tarnv1.StageFailed:
			j.wrong(o, time.Time{}, command, "%s could not be staged: %s", where, g.Status.Node.Message)
		case status.Phase == tarnv1.StagePodFailed:
			j.wrong(o, time.Time{}, command, "%s could not be staged: %s", where, status.Message)
		case phase != tarnv1.StageStaged && j.lasting(g.CreationTimestamp.Time):
			j.wrong(o, g.CreationTimestamp.Time, command, "%s is not staged yet: %s", where, cmp.Or(status.Message, g.Status.Node.Message, "its pod has not made it available"))
		}
		j.stagesTold[g.Name] = phase == tarnv1.StageStaged || len(j.Problems) > before
		phases.add(state, 0)
	}
	j.Stages = phases.list()
}

const (
	// stagingFailed is the reason of the Event that the stage controller posts on a claim whose
	// volume could not be staged.
	stagingFailed = "StagingFailed"
	// stagingPause is how long the claim counts as failing after the Event. The kubelet retries
	// after at most two minutes and two seconds, and then there is a stage again.
	stagingPause = 3 * time.Minute
)

// unstaged reports claims whose staging has failed. The stage is deleted with the failed attempt.
// Until the kubelet retries, only the claim's Event shows the failure.
func (j *judgement) unstaged() {
	newest := map[string]*corev1.Event{} // by stage; the next attempt's stage has the same name
	var names []string
	for i := range j.view.Failed.Items {
		e := &j.view.Failed.Items[i]
		if e.InvolvedObject.Kind != kindClaim || e.Related == nil || j.stagesTold[e.Related.Name] || j.view.Now.Sub(explain.LastSeen(e)) > stagingPause {
			continue
		}
		name := e.Related.Name
		if newest[name] == nil {
			names = append(names, name)
		}
		if newest[name] == nil || explain.LastSeen(e).After(explain.LastSeen(newest[name])) {
			newest[name] = e
		}
	}
	for _, name := range names {
		e := newest[name]
		o := explain.Object{Kind: explain.Claim, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name}
		j.waits(o, explain.LastSeen(e), "its volume could not be staged: %s", e.Message)
	}
}

func (j *judgement) claims() {
	phases := counts{}
	for i := range j.view.Claims.Items {
		c := &j.view.Claims.Items[i]
		state := cmp.Or(string(c.Status.Phase), string(corev1.ClaimPending))
		o := explain.Object{Kind: explain.Claim, Namespace: c.Namespace, Name: c.Name}
		switch {
		case c.DeletionTimestamp != nil:
			state = "Terminating"
			if j.lasting(c.DeletionTimestamp.Time) {
				j.waits(o, c.DeletionTimestamp.Time, "it is being deleted, and something keeps it")
			}
		case c.Status.Phase == corev1.ClaimLost:
			j.waits(o, time.Time{}, "its volume %s is lost", c.Spec.VolumeName)
		case j.view.awaitsPod(*c):
			j.placedByHand(c)
		case state == string(corev1.ClaimPending) && j.lasting(c.CreationTimestamp.Time) && !j.told["pvc-"+string(c.UID)]:
			j.waits(o, c.CreationTimestamp.Time, "it has no volume")
		}
		phases.add(state, 0)
	}
	j.Claims = phases.list()
}

// awaitsPod says whether a claim waits, as its class requires, for a pod that the scheduler has
// placed.
func (v *View) awaitsPod(c corev1.PersistentVolumeClaim) bool {
	if cmp.Or(c.Status.Phase, corev1.ClaimPending) != corev1.ClaimPending || c.DeletionTimestamp != nil || c.Annotations[volume.AnnSelectedNode] != "" {
		return false
	}
	for i := range v.Classes.Items {
		if class := &v.Classes.Items[i]; class.Name == volume.ClassOf(&c) {
			waits, err := volume.WaitsForConsumer(class)
			return err == nil && waits
		}
	}
	return false
}

// placedByHand reports a pod that never starts. It uses a claim that waits for the scheduler, but
// sets its node itself, so the scheduler never sees it. It is no problem if the claim has another
// pod that the scheduler will place.
func (j *judgement) placedByHand(c *corev1.PersistentVolumeClaim) {
	var placed *corev1.Pod
	for i := range j.view.Pods.Items {
		pod := &j.view.Pods.Items[i]
		switch {
		case pod.Namespace != c.Namespace || pod.DeletionTimestamp != nil || !slices.Contains(volume.ClaimsOfPod(pod), c.Name):
		case pod.Spec.NodeName == "":
			return
		default:
			placed = pod
		}
	}
	if placed == nil || !j.lasting(placed.CreationTimestamp.Time) {
		return
	}
	o := explain.Object{Kind: explain.Pod, Namespace: placed.Namespace, Name: placed.Name}
	if !slices.ContainsFunc(j.Problems, func(p Problem) bool { return p.Object == o }) { // reported for another claim
		j.waits(o, placed.CreationTimestamp.Time,
			"it can never start: it sets spec.nodeName, so no scheduler selects a node for claim %s; create it again with a nodeSelector", c.Name)
	}
}

// urgent are the reasons of an App that is not ready and does not become ready by waiting.
var urgent = []string{tarnv1.ReasonRefused, tarnv1.ReasonResizeFailed, tarnv1.ReasonPodsFailing}

func (j *judgement) apps() {
	for i := range j.view.Apps.Items {
		a := &j.view.Apps.Items[i]
		o := explain.Object{Kind: kindApp, Namespace: a.Namespace, Name: a.Name}
		c := meta.FindStatusCondition(a.Status.Conditions, tarnv1.ConditionReady)
		row := App{Namespace: a.Namespace, Name: a.Name, Running: a.Status.ReadyReplicas, Replicas: 1, Volumes: len(a.Spec.Volumes)}
		if a.Spec.Replicas != nil {
			row.Replicas = *a.Spec.Replicas
		}
		if c != nil {
			row.Ready, row.Reason = c.Status == metav1.ConditionTrue && a.Status.ObservedGeneration == a.Generation, c.Reason
		}
		j.Apps = append(j.Apps, row)
		switch {
		case a.DeletionTimestamp != nil && j.lasting(a.DeletionTimestamp.Time):
			j.waits(o, a.DeletionTimestamp.Time, "it is being deleted, and something keeps it")
		case a.DeletionTimestamp != nil, row.Ready, row.Reason == tarnv1.ReasonNothingDeployed:
		case c != nil && (slices.Contains(urgent, c.Reason) || j.lasting(c.LastTransitionTime.Time)):
			j.waits(o, c.LastTransitionTime.Time, "it is not ready, %s: %s", c.Reason, appplan.Brief(c.Message))
		case c == nil && j.lasting(a.CreationTimestamp.Time):
			j.waits(o, a.CreationTimestamp.Time, "no controller has reconciled it")
		}
	}
}
