//go:build e2e

package e2e

import (
	"net/http"
	"strings"
	"testing"
)

func TestTwoTenantsOfTheRESTAPISeeNothingOfEachOther(t *testing.T) {
	t.Parallel()
	one, other := begin(t, "tenant-one"), begin(t, "tenant-other")
	one.needsClasses("local-path")
	a, b := one.restCaller(), other.restCaller()
	for _, c := range []*restCaller{a, b} { // both have the same id
		c.s.app("shop")
		c.post(http.StatusCreated, "/v1/apps", `{"id": "shop"}`)
		c.deploy(http.StatusAccepted, shop+"/deploy", `[app]
image = "busybox:1.36"
command = ["sh", "-c", "echo `+c.s.name+` >> /data/note; `+stays+`"]

[[volumes]]
name = "data"
mountPath = "/data"
size = "1Gi"
storageClass = "local-path"
`)
	}
	a.post(http.StatusCreated, "/v1/apps", `{"id": "secret"}`)
	one.app("secret")
	for _, c := range []*restCaller{a, b} {
		c.s.says(c.follow(shop+"/events", "settled"), `"status":"Ready"`, `"namespace":"`+c.s.name+`"`)
	}

	// The answer for another tenant's object equals that for a missing one, except for the name.
	abroad := "?namespace=" + one.name
	calls := [][3]string{
		{http.MethodGet, "", ""}, {http.MethodDelete, "", ""}, {http.MethodPost, "/deploy", shopAgain}, {http.MethodPost, "/plan", shopAgain},
		{http.MethodPost, "/scale", `{"replicas": 0}`}, {http.MethodGet, "/volumes", ""}, {http.MethodPut, "/volumes/data", `{"new_size_gi": 2}`}, {http.MethodGet, "/events", ""},
	}
	for _, call := range calls {
		there := b.call(http.StatusNotFound, call[0], shop+call[1]+abroad, "application/json", call[2])
		nowhere := b.call(http.StatusNotFound, call[0], "/v1/apps/none"+call[1]+abroad, "application/json", call[2])
		b.s.fails(there, "not_found", "app 'shop' not found")
		if strings.ReplaceAll(nowhere, "'none'", "'shop'") != there {
			t.Errorf("%s %s answers %s for what is there, and %s for what is not", call[0], call[1], there, nowhere)
		}
	}
	for _, namespace := range []string{one.name, "no-such-namespace"} {
		for method, body := range map[string]string{http.MethodGet: "", http.MethodPost: `{"id": "shop"}`} {
			b.call(http.StatusForbidden, method, "/v1/apps?namespace="+namespace, "application/json", body)
		}
	}
	b.call(http.StatusNotFound, http.MethodGet, "/v1/apps/secret", "", "")
	if listed := b.get("/v1/apps"); strings.Contains(listed, one.name) || strings.Contains(listed, "secret") {
		t.Errorf("a tenant is told of another's applications: %s", listed)
	}
	// None of the requests in the foreign namespace had an effect. In its own namespace, the other
	// tenant changes only its own objects.
	b.call(http.StatusOK, http.MethodDelete, shop, "", "")
	a.s.says(a.get(shop), `"status":"Ready"`, `"ready_replicas":1`, `"namespace":"`+one.name+`"`)
	a.s.says(a.get(shop+"/volumes"), `"size_gi":1`, `"status":"Bound"`)
}
