package service

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
)

func TestWhatIsSaidOfAnApplicationIsNotAlwaysSaidOfTheVolumeThatGrows(t *testing.T) {
	told := func(status metav1.ConditionStatus, reason, message string, sizes ...string) *tarnv1.App {
		app := &tarnv1.App{ObjectMeta: metav1.ObjectMeta{Generation: 2}}
		app.Status.ObservedGeneration = 2
		app.Status.Conditions = []metav1.Condition{{Type: tarnv1.ConditionDeployed, Status: status, Reason: reason, Message: message}}
		for i, name := range []string{"b", "a"}[:len(sizes)] {
			size := resource.MustParse(sizes[i])
			app.Status.Volumes = append(app.Status.Volumes, tarnv1.AppVolumeStatus{Name: name, Requested: &size})
		}
		return app
	}
	const no, yes = metav1.ConditionFalse, metav1.ConditionTrue
	unseen := told(yes, tarnv1.ReasonDeployed, "", "20Gi", "1Gi")
	unseen.Status.ObservedGeneration = 1
	unmade := told(no, tarnv1.ReasonDeploying, "")
	unmade.Status.Volumes = []tarnv1.AppVolumeStatus{{Name: "b"}}
	for name, c := range map[string]struct {
		app     *tarnv1.App
		refused string
		known   bool
	}{
		"its growth is refused":                     {told(no, tarnv1.ReasonRefused, "b is over quota", "10Gi", "1Gi"), "b is over quota", true},
		"it is taken, another is refused":           {told(no, tarnv1.ReasonRefused, "a is over quota", "20Gi", "1Gi"), "", true},
		"another has as much, and it is refused":    {told(no, tarnv1.ReasonRefused, "b is over quota", "10Gi", "20Gi"), "b is over quota", true},
		"it is taken, the rest is under way":        {told(no, tarnv1.ReasonDeploying, "", "20Gi", "1Gi"), "", true},
		"all is as asked for, by what it was given": {told(yes, tarnv1.ReasonDeployed, "", "10Gi", "1Gi"), "", true},
		"nothing is decided":                        {told(no, tarnv1.ReasonDeploying, "", "10Gi", "1Gi"), "", false},
		"it has no claim yet":                       {unmade, "", false},
		"what is said is about an earlier spec":     {unseen, "", false},
		"nothing has been said of the application":  {&tarnv1.App{}, "", false},
		"it is larger than was asked by now":        {told(no, tarnv1.ReasonRefused, "a is over quota", "30Gi", "1Gi"), "", true},
		"it is larger, but not as large as asked":   {told(no, tarnv1.ReasonRefused, "b is over quota", "19Gi", "1Gi"), "b is over quota", true},
	} {
		if refused, known := verdict(c.app, "b", 20); refused != c.refused || known != c.known {
			t.Errorf("%s: refused %q, known %t; want %q, %t", name, refused, known, c.refused, c.known)
		}
	}
}
