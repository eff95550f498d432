// Package client calls the REST API of applications, for the command line and for tests. It knows
// the API's answers and errors, and nothing of Kubernetes.
package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"

	appplan "tarn.dev/tarn/internal/app/plan"
)

// longestAnswer is how much of an answer is read, in bytes.
const longestAnswer = 16 << 20

// Client calls one server as one caller. Goroutines may share it.
type Client struct {
	base  *url.URL
	token func() (string, error)
	http  *http.Client
}

// Options say where the server is and who calls.
type Options struct {
	// URL of the server, such as https://tarn.example.com.
	URL string
	// Token returns the Kubernetes token to send. It is called before each call, because tokens
	// expire. Nil sends no token.
	Token func() (string, error)
	// HTTP sends the calls; nil means http.DefaultClient.
	HTTP *http.Client
}

// New makes a client. The error names what is wrong with the options.
func New(options Options) (*Client, error) {
	base, err := url.Parse(options.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the address of a server: write it as https://tarn.example.com", options.URL)
	}
	c := &Client{base: base, token: options.Token, http: options.HTTP}
	if c.http == nil {
		c.http = http.DefaultClient
	}
	return c, nil
}

// Create reserves an id for an application. The errors of all calls are *appplan.Error if the
// server answered.
func (c *Client) Create(ctx context.Context, namespace, id string) (*appplan.App, error) {
	return call[appplan.App](ctx, c, request{method: http.MethodPost, namespace: namespace, path: []string{"apps"}, body: object{"id": id}})
}

// List returns the applications of a namespace.
func (c *Client) List(ctx context.Context, namespace string) ([]appplan.App, error) {
	return value(call[[]appplan.App](ctx, c, request{method: http.MethodGet, namespace: namespace, path: []string{"apps"}}))
}

// Get returns one application.
func (c *Client) Get(ctx context.Context, namespace, id string) (*appplan.App, error) {
	return call[appplan.App](ctx, c, request{method: http.MethodGet, namespace: namespace, path: []string{"apps", id}})
}

// Delete requests the deletion of an application, with its volumes except those to be preserved.
func (c *Client) Delete(ctx context.Context, namespace, id string) (*appplan.Deletion, error) {
	return call[appplan.Deletion](ctx, c, request{method: http.MethodDelete, namespace: namespace, path: []string{"apps", id}})
}

// Deploy deploys a paas.toml to an existing application.
func (c *Client) Deploy(ctx context.Context, namespace, id string, source appplan.Source) (*appplan.Deployed, error) {
	return call[appplan.Deployed](ctx, c, request{method: http.MethodPost, namespace: namespace, path: []string{"apps", id, "deploy"}, body: source})
}

// Plan says what Deploy would do to an existing application. With isNew, it does so for an
// application that is to be created first.
func (c *Client) Plan(ctx context.Context, namespace, id string, source appplan.Source, isNew bool) (*appplan.Plan, error) {
	r := request{method: http.MethodPost, namespace: namespace, path: []string{"apps", id, "plan"}, body: source}
	if isNew {
		r.query = url.Values{"new": {"true"}}
	}
	return call[appplan.Plan](ctx, c, r)
}

// Scale asks for a number of pods.
func (c *Client) Scale(ctx context.Context, namespace, id string, replicas int32) (*appplan.App, error) {
	return call[appplan.App](ctx, c, request{method: http.MethodPost, namespace: namespace, path: []string{"apps", id, "scale"}, body: object{"replicas": replicas}})
}

// Volumes returns the volumes that an application mounts.
func (c *Client) Volumes(ctx context.Context, namespace, id string) ([]appplan.Volume, error) {
	return value(call[[]appplan.Volume](ctx, c, request{method: http.MethodGet, namespace: namespace, path: []string{"apps", id, "volumes"}}))
}

// Resize requests a larger size for a volume.
func (c *Client) Resize(ctx context.Context, namespace, id, volume string, sizeGi int64) (*appplan.Resized, error) {
	return call[appplan.Resized](ctx, c, request{method: http.MethodPut, namespace: namespace, path: []string{"apps", id, "volumes", volume}, body: object{"new_size_gi": sizeGi}})
}

// Events calls yield with each event of an application. It ends after the last event, with yield's
// first error, or with ctx. A stream that breaks off before its last event is an error.
func (c *Client) Events(ctx context.Context, namespace, id string, yield func(appplan.Event) error) error {
	response, err := c.send(ctx, request{method: http.MethodGet, namespace: namespace, path: []string{"apps", id, "events"}})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return failure(response)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, longestAnswer)
	for lines.Scan() {
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		var event struct {
			appplan.Event
			Error *appplan.Error `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &event); err != nil {
			return fmt.Errorf("reading an event of the server: %w", err)
		}
		if event.Error != nil { // the call failed after the server had begun to answer
			return event.Error
		}
		if err := yield(event.Event); err != nil || event.Kind.Last() {
			return err
		}
	}
	if err := errors.Join(ctx.Err(), lines.Err()); err != nil {
		return fmt.Errorf("reading the events of app '%s': %w", id, err)
	}
	return fmt.Errorf("the server ended the events of app '%s' before they were over", id)
}

// request is one call: its method, its namespace, its path below /v1, and its body. The body is
// nil, a Source, or an object.
type request struct {
	method, namespace string
	path              []string
	query             url.Values
	body              any
}

// object is a small body.
type object map[string]any

// call makes one call and decodes the answer.
func call[T any](ctx context.Context, c *Client, r request) (*T, error) {
	response, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusMultipleChoices {
		return nil, failure(response)
	}
	var answer struct {
		Data *T `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, longestAnswer)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", c.base.Host, err)
	}
	if answer.Data == nil {
		return nil, fmt.Errorf("the answer of %s has no data: is it the server of `tarn api`?", c.base.Host)
	}
	return answer.Data, nil
}

func value[T any](pointer *T, err error) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return *pointer, nil
}

func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	address, err := c.address(r)
	if err != nil {
		return nil, err
	}
	text, contentType, err := encode(r.body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, r.method, address, bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("calling %s: %w", c.base.Host, err)
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	if c.token != nil {
		token, err := c.token()
		if err != nil {
			return nil, fmt.Errorf("getting a token to call %s with: %w", c.base.Host, err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.http.Do(request)
	var distrusted *tls.CertificateVerificationError
	if errors.As(err, &distrusted) {
		return nil, fmt.Errorf("calling %s: the server's certificate is not trusted: %w; give its certificate authority with --server-ca, and a host name of the certificate with --server", c.base.Host, distrusted.Err)
	}
	if err != nil {
		return nil, fmt.Errorf("calling %s: %w", c.base.Host, err)
	}
	return response, nil
}

// address returns the URL of a request. It rejects names that would lead to another path.
func (c *Client) address(r request) (string, error) {
	address := strings.TrimSuffix(c.base.String(), "/") + "/v1"
	for _, part := range r.path {
		if part == "" || part == "." || part == ".." {
			return "", appplan.Errorf(appplan.Invalid, "%q is not a valid name: write lower-case letters, digits and -", part)
		}
		address += "/" + url.PathEscape(part)
	}
	query := maps.Clone(r.query)
	if r.namespace != "" {
		if query == nil {
			query = url.Values{}
		}
		query.Set("namespace", r.namespace)
	}
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	return address, nil
}

func encode(body any) (text []byte, contentType string, err error) {
	switch body := body.(type) {
	case nil:
		return nil, "", nil
	case appplan.Source:
		if body.JSON {
			return body.Text, "application/json", nil
		}
		return body.Text, "application/toml", nil
	}
	text, err = json.Marshal(body)
	if err != nil {
		return nil, "", fmt.Errorf("encoding a call: %w", err)
	}
	return text, "application/json", nil
}

// speaksTLS is the answer of Go's HTTPS server to a call without TLS.
const speaksTLS = "sent an HTTP request to an HTTPS server"

// failure returns the error that a server answered.
func failure(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, longestAnswer))
	if strings.Contains(string(text), speaksTLS) { // often comes with an error, because the server resets the connection
		return fmt.Errorf("%[1]s accepts TLS only: call it as https://%[1]s", response.Request.URL.Host)
	}
	if err != nil {
		return fmt.Errorf("reading the answer of %s: %w", response.Request.URL.Host, err)
	}
	var answer struct {
		Error *appplan.Error `json:"error"`
	}
	if json.Unmarshal(text, &answer) != nil || answer.Error == nil || answer.Error.Message == "" {
		return fmt.Errorf("%s answered %s: is it the server of `tarn api`?", response.Request.URL.Host, response.Status)
	}
	return answer.Error
}
