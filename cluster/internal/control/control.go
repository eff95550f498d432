// Package control is how the commands of tarn-cluster talk to the supervisor of a cluster. It sends
// a few HTTP requests over a unix socket in the cluster's run directory, which only root may open.
//
// It must not know how the supervisor carries out the requests.
package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// The stages of a cluster.
const (
	Starting = "Starting"
	Ready    = "Ready"
	Failed   = "Failed"
	Stopping = "Stopping"
	Down     = "Down" // no supervisor answers
)

// The states of a component.
const (
	Running = "Running"
	Waiting = "Waiting" // for its turn, or for its next restart
	Absent  = "Absent"  // not run here; Note says why
)

// Component is one supervised process.
type Component struct {
	Name     string    `json:"name"`
	State    string    `json:"state"`
	PID      int       `json:"pid,omitempty"` // as the host counts
	Started  time.Time `json:"started,omitzero"`
	Restarts int       `json:"restarts"`
	LastExit string    `json:"lastExit,omitempty"`
	Metrics  string    `json:"metrics,omitempty"` // host:port
	Note     string    `json:"note,omitempty"`
}

// Status is a summary of a cluster.
type Status struct {
	Name       string      `json:"name"`
	Stage      string      `json:"stage"`
	Message    string      `json:"message,omitempty"`
	PID        int         `json:"pid,omitempty"` // of the supervisor, as the host counts
	Server     string      `json:"server,omitempty"`
	Apps       string      `json:"apps,omitempty"`   // URL of the REST API of applications
	AppsCA     string      `json:"appsCA,omitempty"` // file with the authority of its certificate
	Node       string      `json:"node,omitempty"`
	NodeIP     string      `json:"nodeIP,omitempty"`
	Kubeconfig string      `json:"kubeconfig,omitempty"`
	DataDir    string      `json:"dataDir"`
	Components []Component `json:"components,omitempty"`
	Nodes      []Node      `json:"nodes,omitempty"` // the further ones
	Frozen     bool        `json:"frozen,omitempty"`
}

// Off is the state of a node that was cut, or whose first process has ended.
const Off = "Off"

// Node is a further node of a cluster.
type Node struct {
	Name       string      `json:"name"`
	IP         string      `json:"ip"`
	Zone       string      `json:"zone"`
	State      string      `json:"state"` // a stage, or Off
	Message    string      `json:"message,omitempty"`
	Frozen     bool        `json:"frozen,omitempty"`
	Isolated   bool        `json:"isolated,omitempty"`
	PID        int         `json:"pid,omitempty"` // of its first process, as the host counts
	Components []Component `json:"components,omitempty"`
}

// The requests about a further node.
const (
	AddNode     = "add"
	RemoveNode  = "remove"
	CutNode     = "cut"
	StartNode   = "start"
	IsolateNode = "isolate"
	JoinNode    = "join"
	FreezeNode  = "freeze"
	ThawNode    = "thaw"
)

// Step is one line of progress. The last step of a start has Stage Ready or Failed.
type Step struct {
	After float64 `json:"after"` // seconds since the supervisor began
	Text  string  `json:"text"`
	Stage string  `json:"stage"`
}

// Server is what a supervisor offers.
type Server interface {
	Status() Status
	// Follow calls yield with every step so far and then with each new one. It returns when the
	// start has ended or ctx is done.
	Follow(ctx context.Context, yield func(Step))
	// Restart ends one component, by a soft signal or by SIGKILL. The supervisor then starts it
	// again.
	Restart(component string, kill bool) error
	// Node carries out a request about a further node.
	Node(ctx context.Context, name, request string) error
	// Stop begins the shutdown and returns at once.
	Stop()
}

// Serve answers requests on the socket until the listener is closed.
func Serve(l net.Listener, s Server) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, s.Status())
	})
	mux.HandleFunc("GET /progress", func(w http.ResponseWriter, r *http.Request) {
		flush := http.NewResponseController(w)
		s.Follow(r.Context(), func(step Step) {
			writeJSON(w, step)
			flush.Flush() //nolint:errcheck // a client that left shows in its context
		})
	})
	mux.HandleFunc("POST /restart/{component}", func(w http.ResponseWriter, r *http.Request) {
		if err := s.Restart(r.PathValue("component"), r.URL.Query().Has("kill")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("POST /nodes/{node}/{request}", func(w http.ResponseWriter, r *http.Request) {
		if err := s.Node(r.Context(), r.PathValue("node"), r.PathValue("request")); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("POST /stop", func(http.ResponseWriter, *http.Request) { s.Stop() })
	if err := http.Serve(l, mux); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serving the control socket: %w", err)
	}
	return nil
}

func writeJSON(w io.Writer, v any) {
	json.NewEncoder(w).Encode(v) //nolint:errcheck // a client that left shows in its context
}

// patience is how long a supervisor may take to report its status. It needs no other process for
// that.
const patience = 20 * time.Second

// Client calls a supervisor.
type Client struct {
	http     http.Client
	patience time.Duration
}

// NewClient returns a client of the supervisor that listens on the socket.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Client{http: http.Client{Transport: &http.Transport{DialContext: dial}}, patience: patience}
}

// Answers reports whether a supervisor answers at all.
func (c *Client) Answers(ctx context.Context) bool {
	_, err := c.Status(ctx)
	return err == nil
}

// Status requests the cluster's status. The kernel accepts connections even for a stopped or
// hanging supervisor; such a supervisor does not answer in time and is an error.
func (c *Client) Status(ctx context.Context) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	var s Status
	body, err := c.do(ctx, http.MethodGet, "/status")
	if err != nil {
		return s, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&s); err != nil {
		return s, fmt.Errorf("reading the supervisor's answer: %w", err)
	}
	return s, nil
}

// Follow calls show with every step of the start and returns the last one. It returns an error if
// the supervisor dies half-way.
func (c *Client) Follow(ctx context.Context, show func(Step)) (Step, error) {
	var last Step
	body, err := c.do(ctx, http.MethodGet, "/progress")
	if err != nil {
		return last, err
	}
	defer body.Close()
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		if err := json.Unmarshal(lines.Bytes(), &last); err != nil {
			return last, fmt.Errorf("reading the supervisor's progress: %w", err)
		}
		show(last)
	}
	if err := lines.Err(); err != nil {
		return last, fmt.Errorf("following the supervisor: %w", err)
	}
	if last.Stage != Ready && last.Stage != Failed {
		return last, errors.New("the supervisor ended before the cluster was ready: see its log with `tarn-cluster logs supervisor`")
	}
	return last, nil
}

// Restart requests the restart of one component.
func (c *Client) Restart(ctx context.Context, component string, kill bool) error {
	path := "/restart/" + url.PathEscape(component)
	if kill {
		path += "?kill"
	}
	return c.post(ctx, path)
}

// Node sends a request about a further node, and waits until it is carried out.
func (c *Client) Node(ctx context.Context, name, request string) error {
	return c.post(ctx, "/nodes/"+url.PathEscape(name)+"/"+request)
}

// Stop requests an orderly shutdown.
func (c *Client) Stop(ctx context.Context) error { return c.post(ctx, "/stop") }

func (c *Client) post(ctx context.Context, path string) error {
	body, err := c.do(ctx, http.MethodPost, path)
	if err != nil {
		return err
	}
	return body.Close()
}

func (c *Client) do(ctx context.Context, method, path string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://supervisor"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("calling the supervisor: %w", err)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("calling the supervisor: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		return nil, errors.New(strings.TrimSpace(string(text)))
	}
	return answer.Body, nil
}

// Listen opens the control socket and replaces one that a dead supervisor left.
func Listen(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("replacing the control socket: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("opening the control socket: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, fmt.Errorf("protecting the control socket: %w", err)
	}
	return l, nil
}
