package explain

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tarn.dev/tarn/internal/kube"
)

func TestAHealthyClaimSaysWhyItDoesNotGrowByItself(t *testing.T) {
	const reached, why = "AutoGrowMaxReached", "it does not grow beyond max=1Gi"
	for name, c := range map[string]struct {
		of   *world
		want string
	}{
		"a complaint":                   {newWorld().bound().event(corev1.EventTypeWarning, reached, why), "; it does not grow by itself: " + why},
		"a step after it":               {newWorld().bound().event(corev1.EventTypeWarning, reached, why).event(corev1.EventTypeNormal, "AutoGrown", "it grows"), ""},
		"another Event after it":        {newWorld().bound().event(corev1.EventTypeWarning, reached, why).event(corev1.EventTypeWarning, "VolumeResizeFailed", "x"), "; it does not grow by itself: " + why},
		"there is room again":           {newWorld().bound().event(corev1.EventTypeWarning, reached, why).event(corev1.EventTypeNormal, "AutoGrowRecovered", "10%"), ""},
		"nothing":                       {newWorld().bound(), ""},
		"an Event of another component": {newWorld().bound().event(corev1.EventTypeWarning, reached, why), ""},
	} {
		for i := range c.of.claimView.Events {
			if c.of.claimView.Events[i].ReportingController = kube.ControllerName; name == "an Event of another component" {
				c.of.claimView.Events[i].ReportingController = "other"
			}
			c.of.claimView.Events[i].LastTimestamp = metav1.NewTime(c.of.view.Now)
		}
		e := chain(c.of.view)
		if !e.Healthy || !strings.HasSuffix(e.Verdict, c.want) || c.want == "" && strings.Contains(e.Verdict, "grow") {
			t.Errorf("%s: healthy %t, %q; want it to end in %q", name, e.Healthy, e.Verdict, c.want)
		}
	}
}
