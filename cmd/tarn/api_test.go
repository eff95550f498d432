package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
	"testing"

	appspec "tarn.dev/tarn/internal/app/spec"
)

func TestTheClassesOfApplicationsAreNamedByAccessMode(t *testing.T) {
	got, err := appClasses(map[string]string{"rwx": "folders"})
	if want := map[appspec.AccessMode]string{appspec.ReadWriteOnce: "ovh-csi-rbd", appspec.ReadWriteMany: "folders"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("appClasses = %v, %v; want %v", got, err, want)
	}
	for _, words := range []map[string]string{{"rox": "a"}, {"rwo": ""}, {"rwo": "a b"}} {
		if _, err := appClasses(words); err == nil || !strings.Contains(err.Error(), "--app-class") {
			t.Errorf("%v: %v", words, err)
		}
	}
}

func TestTheDescriptionOfTheAPIIsPrintedWithoutAServer(t *testing.T) {
	var out bytes.Buffer
	cmd := newAPICommand()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"openapi"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	var document struct{ OpenAPI string }
	if err := json.Unmarshal(out.Bytes(), &document); err != nil || document.OpenAPI != "3.1.0" {
		t.Errorf("printed %.100s (%v)", out.String(), err)
	}
}
