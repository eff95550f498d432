//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// With TARN_RECORD=DIR each answer of tarn explain that a case asserts is written to DIR, with all
// that the API server answered. `go test ./internal/cli/explain` reads such files in its testdata,
// and -update gives them their form. Take out by hand what the answer does not depend on.

// recording is a proxy of the API server that keeps what it answers.
type recording struct {
	server http.RoundTripper

	mu      sync.Mutex
	objects map[string]fields
	fails   []fields
	logs    map[string]string
}

// record asks tarn explain once more, through a recording, and writes what that has read. args are
// those of tarn explain: KIND and NAME, then flags.
func (s *scenario) record(args []string) {
	s.t.Helper()
	dir := os.Getenv("TARN_RECORD")
	if dir == "" {
		return
	}
	path := os.Getenv("KUBECONFIG")
	if i := slices.Index(args, "--kubeconfig"); i >= 0 && args[i+1] != "" {
		path = args[i+1]
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		s.t.Fatal(err)
	}
	server, err := rest.TransportFor(config)
	if err != nil {
		s.t.Fatal(err)
	}
	r := &recording{server: server, objects: map[string]fields{}, logs: map[string]string{}}
	to, err := url.Parse(config.Host)
	if err != nil {
		s.t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Transport: r, Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to) }})
	defer proxy.Close()
	through := clientcmdapi.NewConfig()
	through.Clusters["recording"] = &clientcmdapi.Cluster{Server: proxy.URL}
	through.Contexts["recording"] = &clientcmdapi.Context{Cluster: "recording", Namespace: s.name}
	through.CurrentContext = "recording"
	kubeconfig := filepath.Join(s.t.TempDir(), "recording")
	if err := clientcmd.WriteToFile(*through, kubeconfig); err != nil {
		s.t.Fatal(err)
	}
	now := time.Now()
	answer, _ := mustTool(s.t, 0, "", "explain", args[0], args[1], "--kubeconfig", kubeconfig)
	r.write(s, dir, fields{"ask": args[0] + " " + args[1], "now": now.UTC().Format(time.RFC3339Nano), "answer": answer})
}

// write writes a table with one case.
func (r *recording) write(s *scenario, dir string, of fields) {
	s.t.Helper()
	of["name"] = s.t.Name()
	if len(r.logs) > 0 {
		of["logs"] = r.logs
	}
	if len(r.fails) > 0 {
		of["fails"] = r.fails
	}
	var objects []fields
	for _, key := range slices.Sorted(maps.Keys(r.objects)) {
		objects = append(objects, r.objects[key])
	}
	of["objects"] = objects
	data, err := yaml.Marshal(fields{"cases": []fields{of}})
	if err != nil {
		s.t.Fatal(err)
	}
	name := strings.ReplaceAll(s.t.Name(), "/", "_") + "_" + time.Now().Format("150405.000") + ".yaml"
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// RoundTrip passes a request on and keeps the answer. It asks for JSON, which it can read.
func (r *recording) RoundTrip(request *http.Request) (*http.Response, error) {
	request.Header.Set("Accept", "application/json")
	request.Header.Del("Accept-Encoding")
	response, err := r.server.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(data))
	r.mu.Lock()
	defer r.mu.Unlock()
	if path := strings.Split(strings.Trim(request.URL.Path, "/"), "/"); path[len(path)-1] == "log" {
		if response.StatusCode == http.StatusOK {
			r.logs[path[3]+"/"+path[5]+"/"+request.URL.Query().Get("container")] = string(data)
		}
		return response, nil
	}
	var o fields
	if json.Unmarshal(data, &o) == nil {
		r.keep(o)
	}
	return response, nil
}

// keep keeps an object, the items of a list, or a rejection.
func (r *recording) keep(o fields) {
	kind, _ := o["kind"].(string)
	of, isList := strings.CutSuffix(kind, "List")
	switch items, _ := o["items"].([]any); {
	case kind == "Status" && o["reason"] == "Forbidden":
		details, _ := o["details"].(map[string]any)
		resource, _ := details["kind"].(string)
		if group, _ := details["group"].(string); group != "" {
			resource += "." + group
		}
		verb := "list"
		if details["name"] != nil {
			verb = "get"
		}
		r.fails = append(r.fails, fields{"verb": verb, "resource": resource})
	case kind == "Status", kind == "", strings.HasPrefix(kind, "API"):
	case isList:
		for _, item := range items {
			object, _ := item.(map[string]any)
			object["kind"], object["apiVersion"] = of, o["apiVersion"]
			r.keep(object)
		}
	default:
		metadata, _ := o["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		namespace, _ := metadata["namespace"].(string)
		r.objects[kind+" "+namespace+"/"+name] = stripped(o)
	}
}

// stripped returns an object without what tarn explain does not read. Of managedFields it reads when
// the object and its status were last written.
func stripped(o fields) fields {
	metadata, _ := o["metadata"].(map[string]any)
	managed, _ := metadata["managedFields"].([]any)
	delete(metadata, "resourceVersion")
	delete(metadata, "managedFields")
	newest := map[string]string{}
	for _, m := range managed {
		entry, _ := m.(map[string]any)
		part, _ := entry["subresource"].(string)
		at, _ := entry["time"].(string)
		newest[part] = max(newest[part], at)
	}
	var kept []any
	for _, part := range slices.Sorted(maps.Keys(newest)) {
		kept = append(kept, fields{"subresource": part, "time": newest[part]})
	}
	if kept != nil {
		metadata["managedFields"] = kept
	}
	return o
}
