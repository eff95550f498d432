package apps

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
	appspec "tarn.dev/tarn/internal/app/spec"
	"tarn.dev/tarn/internal/volume"
)

const (
	// annDeployed is the annotation of Deployments with a hash of the spec that they were
	// written with. Only the hash shows that a field was removed from that spec.
	annDeployed = "tarn.dev/deployed"
	// annRemade is the annotation of claims that were created in place of one with data.
	annRemade = "tarn.dev/made-anew"
	// preserveYes is the value of AnnotationPreserve that takes effect.
	preserveYes = "true"
	// prefix is the prefix of the names of all objects of Apps.
	prefix = "paas-app-"
	// container is the name of an App's container.
	container = "app"
	// settleSeconds is how long a pod must be ready before it counts. Without a probe, a pod
	// that exits right after it has read its configuration is ready until then.
	settleSeconds = 5

	gi = 1 << 30
)

// ownName is the name of an App's Deployment and ConfigMap.
func ownName(app *tarnv1.App) string { return prefix + app.Name }

// ours reports whether an object exists and was created for this very App.
func ours[T any, P interface {
	*T
	metav1.Object
}](app *tarnv1.App, o P) bool {
	return o != nil && metav1.IsControlledBy(o, app)
}

func labelsOf(app *tarnv1.App) map[string]string {
	return map[string]string{tarnv1.LabelApp: app.Name}
}

func ownMeta(app *tarnv1.App) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: app.Namespace, Name: ownName(app), Labels: labelsOf(app),
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: tarnv1.GroupVersion.String(), Kind: "App", Name: app.Name, UID: app.UID, Controller: ptr.To(true),
		}},
	}
}

// newConfig is the ConfigMap that holds a topology.
func newConfig(app *tarnv1.App, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: ownMeta(app), Data: map[string]string{topologyKey: text}}
}

// newClaim is the claim of a volume. It has no owner, because the garbage collector must not
// delete a claim that outlives its App.
func newClaim(v *View, volume *tarnv1.AppVolume) *corev1.PersistentVolumeClaim {
	labels := labelsOf(v.App)
	labels[tarnv1.LabelAppVolume] = volume.Name
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v.App.Namespace, Name: appspec.ClaimName(v.App.Name, volume.Name), Labels: labels,
			Annotations: map[string]string{tarnv1.AnnotationMadeFor: string(v.App.UID)},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{cmp.Or(volume.AccessMode, corev1.ReadWriteOnce)},
			StorageClassName: ptr.To(v.world().ClassName(*volume)),
			Resources:        corev1.VolumeResourceRequirements{Requests: storage(volume.SizeGi * gi)},
		},
	}
	if volume.PreserveOnDelete {
		claim.Annotations[tarnv1.AnnotationPreserve] = preserveYes
	}
	return claim
}

// newDeployment is the App's workload. Its pods get no ServiceAccount token.
func newDeployment(v *View) *appsv1.Deployment {
	app := v.App
	main := corev1.Container{
		Name: container, Image: app.Spec.Image, Command: literals(app.Spec.Command), Args: literals(app.Spec.Args),
		// The end of its log is then in the pod's status, readable by all users that can see
		// the App.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	if app.Spec.Port != 0 {
		main.Ports = []corev1.ContainerPort{{ContainerPort: app.Spec.Port}}
	}
	for _, name := range slices.Sorted(maps.Keys(app.Spec.Env)) {
		main.Env = append(main.Env, corev1.EnvVar{Name: name, Value: literal(app.Spec.Env[name])})
	}
	for _, name := range slices.Sorted(maps.Keys(app.Spec.Secrets)) {
		secret, key, _ := strings.Cut(string(app.Spec.Secrets[name]), "/")
		main.Env = append(main.Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: key},
		}})
	}
	var volumes []corev1.Volume
	strategy := appsv1.RollingUpdateDeploymentStrategyType
	for i := range app.Spec.Volumes {
		volume := &app.Spec.Volumes[i]
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: volume.Name, MountPath: volume.MountPath})
		volumes = append(volumes, corev1.Volume{Name: volume.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: appspec.ClaimName(app.Name, volume.Name)},
		}})
		if appplan.Single(v.mode(volume)) { // a new pod on another node would wait for the old one for ever
			strategy = appsv1.RecreateDeploymentStrategyType
		}
	}
	d := &appsv1.Deployment{ObjectMeta: ownMeta(app), Spec: appsv1.DeploymentSpec{
		Replicas:        ptr.To(replicas(app)),
		Selector:        &metav1.LabelSelector{MatchLabels: labelsOf(app)},
		Strategy:        appsv1.DeploymentStrategy{Type: strategy},
		MinReadySeconds: settleSeconds,
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labelsOf(app)},
			Spec:       corev1.PodSpec{AutomountServiceAccountToken: ptr.To(false), Containers: []corev1.Container{main}, Volumes: volumes},
		},
	}}
	d.Spec.Template.Labels[tarnv1.LabelDeployed] = hashOf(&d.Spec.Template)
	d.Annotations = map[string]string{annDeployed: hashOf(&d.Spec)}
	return d
}

// literal escapes a text for the kubelet, which expands $(NAME) and $$. The container gets the
// text as it was.
func literal(text string) string { return strings.ReplaceAll(text, "$", "$$") }

func literals(texts []string) []string {
	var out []string
	for _, text := range texts {
		out = append(out, literal(text))
	}
	return out
}

func hashOf(spec any) string {
	text, err := json.Marshal(spec)
	if err != nil { // impossible: the type has no channels and functions
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// runs reports whether a Deployment is as wanted, apart from fields that the API server
// defaults.
func runs(live, wanted *appsv1.Deployment) bool {
	return live.Annotations[annDeployed] == wanted.Annotations[annDeployed] && live.Labels[tarnv1.LabelApp] == wanted.Labels[tarnv1.LabelApp] &&
		ptr.Deref(live.Spec.Replicas, 1) == *wanted.Spec.Replicas && equality.Semantic.DeepDerivative(wanted.Spec, live.Spec)
}

func replicas(app *tarnv1.App) int32 { return ptr.Deref(app.Spec.Replicas, 1) }

func storage(bytes int64) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
}

// requested is the size that a claim requests, capacityOf the size that it has, in bytes.
func requested(claim *corev1.PersistentVolumeClaim) int64 {
	return volume.Bytes(*claim.Spec.Resources.Requests.Storage())
}

func capacityOf(claim *corev1.PersistentVolumeClaim) int64 {
	return volume.Bytes(*claim.Status.Capacity.Storage())
}

// inGi rounds bytes up to GiB.
func inGi(bytes int64) int64 { return bytes/gi + min(1, bytes%gi) }

// held reports whether an App has the finalizer.
func held(app *tarnv1.App) bool { return slices.Contains(app.Finalizers, tarnv1.FinalizerApp) }
