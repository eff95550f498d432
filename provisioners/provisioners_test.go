package provisioners

import (
	"encoding/json"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	pavv1 "tarn.dev/tarn/api/pav/v1alpha1"
)

func TestEachReadyProvisionerHasAClassOfItsNameThatLetsItsVolumesGrow(t *testing.T) {
	if len(Names()) == 0 {
		t.Fatal("there is no ready provisioner")
	}
	for _, name := range Names() {
		object, err := Provisioner(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := object.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		p := &pavv1.PavProvisioner{}
		if err := json.Unmarshal(text, p); err != nil {
			t.Fatal(err)
		}
		object, err = Class(name)
		if err != nil {
			t.Fatal(err)
		}
		class := &storagev1.StorageClass{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, class); err != nil {
			t.Fatal(err)
		}
		if p.Name != name || class.Name != name || class.Provisioner != name {
			t.Errorf("folder %s has provisioner %s, and class %s of provisioner %s", name, p.Name, class.Name, class.Provisioner)
		}
		if grows := ptr.Deref(class.AllowVolumeExpansion, false); grows != (p.Spec.VolumeExpansion != nil) {
			t.Errorf("class %s lets volumes grow: %v, its provisioner can make them: %v", name, grows, !grows)
		}
	}
}

func TestAProvisionerThatDoesNotExistIsRefusedWithThoseThatDo(t *testing.T) {
	_, err := Provisioner("nosuch")
	if err == nil || !strings.Contains(err.Error(), `"nosuch": take any of `+strings.Join(Names(), ", ")) {
		t.Errorf("got %v, want an error that lists the names", err)
	}
}
