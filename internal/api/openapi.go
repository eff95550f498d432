package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	appplan "tarn.dev/tarn/internal/app/plan"
	appspec "tarn.dev/tarn/internal/app/spec"
)

// Bodies of calls as the API's document describes them. They are parsed by hand to give better
// errors.
type (
	idBody struct {
		ID string `json:"id" maxLength:"51" pattern:"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" doc:"Id of the application" example:"shop"`
	}
	scaleBody struct {
		Replicas int32 `json:"replicas" minimum:"0" maximum:"1000" doc:"Pods that are to run" example:"3"`
	}
	resizeBody struct {
		NewSizeGi int64 `json:"new_size_gi" minimum:"1" maximum:"1000" doc:"Size the volume is to have, in GiB; greater than it has" example:"20"`
	}
	fileBody struct {
		App     fileApp      `json:"app" doc:"What runs"`
		Volumes []fileVolume `json:"volumes,omitempty" maxItems:"64" nullable:"false" doc:"What it stores"`
	}
	fileApp struct {
		Name     string            `json:"name,omitempty" doc:"Id of the application, which may be left out"`
		Image    string            `json:"image" doc:"Image of the container" example:"registry.example.com/shop:1.4"`
		Command  []string          `json:"command,omitempty" nullable:"false" doc:"What is run in place of the image's entry point"`
		Args     []string          `json:"args,omitempty" nullable:"false" doc:"Arguments in place of the image's"`
		Port     int32             `json:"port,omitempty" minimum:"1" maximum:"65535" doc:"Port it listens on"`
		Env      map[string]string `json:"env,omitempty" doc:"Environment variables"`
		Secrets  map[string]string `json:"secrets,omitempty" doc:"Environment variables from Secrets of the namespace, each as SECRET/KEY" example:"{\"PASSWORD\":\"shop-db/password\"}"`
		Replicas *int32            `json:"replicas,omitempty" minimum:"0" maximum:"1000" default:"1" doc:"Pods that are to run"`
	}
	fileVolume struct {
		Name             string `json:"name" doc:"Name within the application" example:"data"`
		MountPath        string `json:"mountPath" doc:"Where it is mounted" example:"/data"`
		Size             string `json:"size" doc:"Size, a whole number of Gi from 1 to 1000" example:"10Gi"`
		AccessMode       string `json:"accessMode,omitempty" default:"rwo" doc:"rwo for one pod at a time, rwx for many; any other is rwo, with a warning" example:"rwo"`
		StorageClass     string `json:"storageClass,omitempty" doc:"Storage class; by default that of the access mode"`
		PreserveOnDelete bool   `json:"preserveOnDelete,omitempty" doc:"Keep it when the application is deleted"`
	}
)

// example is the paas.toml in the document.
const example = `[app]
image = "registry.example.com/shop:1.4"
port = 8080

[[volumes]]
name = "data"
mountPath = "/data"
size = "10Gi"
`

// describeBodies adds to the document the bodies that are parsed by hand, which huma does not know.
func describeBodies(document *huma.OpenAPI) {
	schemas := document.Components.Schemas
	object := func(of reflect.Type) map[string]*huma.MediaType {
		return map[string]*huma.MediaType{"application/json": {Schema: schemas.Schema(of, true, "")}}
	}
	file := object(reflect.TypeFor[fileBody]())
	for _, kind := range []string{"application/toml", "text/x-toml"} {
		file[kind] = &huma.MediaType{
			Schema:  &huma.Schema{Type: huma.TypeString, MaxLength: ptr(appspec.MaxBytes), Description: "A paas.toml"},
			Example: example,
		}
	}
	for path, content := range map[string]map[string]*huma.MediaType{
		"/v1/apps": object(reflect.TypeFor[idBody]()), "/v1/apps/{id}/scale": object(reflect.TypeFor[scaleBody]()),
		"/v1/apps/{id}/deploy": file, "/v1/apps/{id}/plan": file,
	} {
		document.Paths[path].Post.RequestBody.Content = content
	}
	document.Paths["/v1/apps/{id}/volumes/{name}"].Put.RequestBody.Content = object(reflect.TypeFor[resizeBody]())
	events := document.Paths["/v1/apps/{id}/events"].Get.Responses["200"]
	events.Description = "Events, the data of each of which is an Event"
	events.Content = map[string]*huma.MediaType{"text/event-stream": {Schema: schemas.Schema(reflect.TypeFor[appplan.Event](), true, "")}}
}

func ptr[T any](value T) *T { return &value }

// Document returns the API's OpenAPI 3.1 document as JSON. version is the version of the build.
func Document(version string) ([]byte, error) {
	s, err := New(Options{Version: version})
	if err != nil {
		return nil, err
	}
	return s.document, nil
}

// serveDocument serves the document, and a page that shows it. Both are rendered once.
func (s *Server) serveDocument(document *huma.OpenAPI) error {
	describeBodies(document)
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return fmt.Errorf("making the document of the API: %w", err)
	}
	page, err := render(document)
	if err != nil {
		return fmt.Errorf("making the page of the API: %w", err)
	}
	s.document = append(text, '\n')
	s.serveFile("/openapi.json", "application/json", s.document)
	s.serveFile("/docs", "text/html; charset=utf-8", page)
	return nil
}

func (s *Server) serveFile(path, kind string, text []byte) {
	s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		_, _ = w.Write(text) // a caller that has left needs no page
	})
}

// shown is one operation as the page shows it.
type shown struct {
	*huma.Operation
	Takes   []string
	Answers []string
}

// render returns the page for a document. The page loads nothing from elsewhere.
func render(document *huma.OpenAPI) ([]byte, error) {
	var calls []shown
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		item := document.Paths[path]
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Delete} {
			if op == nil {
				continue
			}
			call := shown{Operation: op, Answers: slices.Sorted(maps.Keys(op.Responses))}
			if op.RequestBody != nil {
				for _, kind := range slices.Sorted(maps.Keys(op.RequestBody.Content)) {
					call.Takes = append(call.Takes, strings.TrimSpace(kind+" "+schemaName(op.RequestBody.Content[kind].Schema)))
				}
			}
			calls = append(calls, call)
		}
	}
	var page bytes.Buffer
	err := docsPage.Execute(&page, map[string]any{
		"Title": document.Info.Title, "Description": document.Info.Description, "Version": document.Info.Version,
		"Calls": calls, "Example": example, "Schemas": document.Components.Schemas.Map(),
	})
	return page.Bytes(), err
}

func schemaName(schema *huma.Schema) string {
	if schema == nil {
		return ""
	}
	return schema.Ref[strings.LastIndexByte(schema.Ref, '/')+1:]
}

// kindOf words the type of a property.
func kindOf(schema *huma.Schema) string {
	switch {
	case schema.Ref != "":
		return schemaName(schema)
	case schema.Items != nil:
		return "list of " + kindOf(schema.Items)
	case len(schema.Enum) > 0:
		return fmt.Sprintf("one of %v", schema.Enum)
	}
	return schema.Type
}

var docsPage = template.Must(template.New("docs").Funcs(template.FuncMap{"kind": kindOf}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title><style>
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
code,pre{font:14px/1.5 ui-monospace,monospace;background:#f2f4f6;border-radius:4px;padding:.1rem .3rem}
pre{padding:1rem;overflow:auto}section{border-top:1px solid #d5dae0;padding:.5rem 0}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top}
.method{font-weight:700;display:inline-block;min-width:4.5rem}
@media (prefers-color-scheme:dark){body{background:#15181c;color:#dfe4ea}code,pre{background:#22272e}section{border-color:#343b44}a{color:#7db8ff}}
</style></head><body>
<h1>{{.Title}}</h1><p>{{.Description}}</p>
<p>Version {{.Version}}. The whole as OpenAPI 3.1: <a href="/openapi.json">/openapi.json</a>.
Success is answered as <code>{"data": ...}</code>, failure as <code>{"error": {"code": "...", "message": "..."}}</code>.</p>
<pre>curl -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/toml" \
  --data-binary @paas.toml $SERVER/v1/apps/shop/deploy</pre>
<h2>paas.toml</h2><pre>{{.Example}}</pre>
<h2>Calls</h2>
{{range .Calls}}<section id="{{.OperationID}}"><h3><span class="method">{{.Method}}</span> <code>{{.Path}}</code></h3>
<p>{{.Summary}}. {{.Description}}</p>
<table>{{range .Parameters}}<tr><td><code>{{.Name}}</code></td><td>{{.In}}</td><td>{{.Description}}</td></tr>{{end}}
{{range .Takes}}<tr><td>body</td><td colspan="2">{{.}}</td></tr>{{end}}
<tr><td>answers</td><td colspan="2">{{range .Answers}}{{.}} {{end}}</td></tr></table></section>
{{end}}<h2>Objects</h2>
{{range $name, $schema := .Schemas}}<section id="{{$name}}"><h3>{{$name}}</h3><table>
{{range $key, $property := $schema.Properties}}<tr><td><code>{{$key}}</code></td><td>{{kind $property}}</td><td>{{$property.Description}}</td></tr>{{end}}
</table></section>{{end}}
</body></html>
`))
