package explain

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
)

// Secrets that a volume needs, as messages of kubelets and pods name them.
var (
	secretMissing   = regexp.MustCompile(`secrets? "([^"]+)" not found`)
	secretNamespace = regexp.MustCompile(`in the namespace (\S+)`)
	secretFile      = regexp.MustCompile(`/pav/secrets/([A-Za-z0-9][A-Za-z0-9._-]*)`)
	speaksOfSecret  = regexp.MustCompile(`(?i)\b(secret|key|password|credentials?)\b`)
)

// keysRead are the entries of the class's Secret that a staging template names.
func keysRead(p *pavv1.PavProvisioner) []string {
	if p == nil || p.Spec.VolumeStaging == nil {
		return nil
	}
	var keys []string
	for _, m := range secretFile.FindAllSubmatch(p.Spec.VolumeStaging.Raw, -1) {
		if key := string(m[1]); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// keysOf are the entries of a Secret that the containers of a pod name.
func keysOf(pod *corev1.Pod, secret string) []string {
	var keys []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, e := range c.Env {
			if from := e.ValueFrom; from != nil && from.SecretKeyRef != nil && from.SecretKeyRef.Name == secret && !slices.Contains(keys, from.SecretKeyRef.Key) {
				keys = append(keys, from.SecretKeyRef.Key)
			}
		}
	}
	return keys
}

// lacksSecret makes a link offer the Secret that a kubelet does not find, and says whether its
// message is about one. The message is about a pod. keys are those of a Secret of the class.
func (l *Link) lacksSecret(message string, pod *corev1.Pod, keys []string) bool {
	m := secretMissing.FindStringSubmatch(message)
	if m == nil {
		return false
	}
	namespace, name := pod.Namespace, m[1]
	if in := secretNamespace.FindStringSubmatch(message); in != nil {
		namespace = in[1]
	} else {
		keys = keysOf(pod, name)
	}
	words := []string{"create", "secret", "generic", name}
	for _, key := range keys {
		words = append(words, "--from-literal="+key+"=VALUE")
	}
	if len(keys) == 0 {
		words = append(words, "--from-literal=KEY=VALUE")
	}
	l.Next = fmt.Sprintf("when Secret %s/%s exists: the kubelet retries by itself", namespace, name)
	l.Command, l.offer = kubectl(namespace, words...), "the command creates the Secret; write its values first, and leave out keys that do not apply"
	return true
}

// namesSecret adds the name of a volume's Secret to a cause that speaks of one: the pod knows only
// its entries.
func (s *story) namesSecret(v *volumeView) {
	if v.Volume == nil || v.Volume.Spec.CSI == nil || v.Volume.Spec.CSI.NodePublishSecretRef == nil || !speaksOfSecret.MatchString(s.cause) {
		return
	}
	ref := v.Volume.Spec.CSI.NodePublishSecretRef
	s.cause += fmt.Sprintf("; its Secret is %s/%s", cmp.Or(ref.Namespace, "default"), ref.Name)
	for _, l := range s.links {
		if l.Command != "" {
			l.Command, l.offer = kubectl(ref.Namespace, "edit", "secret", ref.Name), "the command edits the Secret"
		}
	}
}
