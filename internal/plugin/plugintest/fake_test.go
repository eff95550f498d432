package plugintest_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"tarn.dev/tarn/internal/plugin"
	"tarn.dev/tarn/internal/plugin/plugintest"
)

func TestTheFakeConforms(t *testing.T) {
	plugintest.Conform(t, func(*testing.T) plugintest.World {
		fake, p := plugintest.NewFake("tarn.dev/fake", "")
		return plugintest.World{
			Plugin:   p,
			Request:  plugin.Request{Bytes: 1 << 20, Mode: corev1.PersistentVolumeFilesystem},
			Unserved: map[string]plugin.Request{"a block device": {Mode: corev1.PersistentVolumeBlock}},
			Foreign: func(string) map[string]corev1.PersistentVolumeSource {
				return map[string]corev1.PersistentVolumeSource{
					"nothing": {},
					"another": {Local: &corev1.LocalVolumeSource{Path: "/fake/b"}},
				}
			},
			Write: func(_ *testing.T, name, file string) { fake.Write(name, file) },
			Files: func(_ *testing.T, name string) []string { return fake.Files(name) },
			Names: func(*testing.T) []string { return fake.Names() },
		}
	})
}
