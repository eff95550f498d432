package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	images "github.com/containerd/containerd/api/services/images/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"tarn.dev/tarn/cluster/internal/layout"
)

// importedLabel marks the images that came from an archive. The mirror serves only those. An image
// pulled from a registry must still be compared with it for `imagePullPolicy: Always`.
const importedLabel = "tarn.dev/imported"

// namespace is the containerd namespace that Kubernetes uses.
const namespace = "k8s.io"

// mirror is a read-only registry of the images in the node's own store. The runtime asks it before
// any other registry. The query parameter ns names the registry that the runtime would have used.
type mirror struct {
	images images.ImagesClient
	blobs  string // containerd's content store
	// served has a file for each reference that was found with the label, with its digest at that
	// time. A pull replaces the record of an image and drops the label, so the label alone would
	// allow one pull only.
	served string
}

// ServeMirror answers until the listener is closed. socket and root are those of containerd.
func ServeMirror(l net.Listener, socket, root string) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Printf("the node's runtime cannot use the images on the node: %v", err)
		return
	}
	defer conn.Close()
	m := mirror{images.NewImagesClient(conn), filepath.Join(root, "io.containerd.content.v1.content", "blobs"), filepath.Join(root, "tarn-served")}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/{$}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v2/{path...}", m.serve)
	if err := http.Serve(l, mux); err != nil && !errors.Is(err, net.ErrClosed) {
		log.Printf("the node's runtime can no longer use the images on the node: %v", err)
	}
}

var (
	askedFor   = regexp.MustCompile(`^(.+)/(manifests|blobs)/([^/]+)$`)
	digestForm = regexp.MustCompile(`^(sha256|sha512):([0-9a-f]+)$`)
)

func (m mirror) serve(w http.ResponseWriter, r *http.Request) {
	asked := askedFor.FindStringSubmatch(r.PathValue("path"))
	registry := r.URL.Query().Get("ns")
	if asked == nil || registry == "" {
		http.NotFound(w, r)
		return
	}
	digest := asked[3]
	if asked[2] == "manifests" && !digestForm.MatchString(digest) {
		found, err := m.resolve(r.Context(), registry+"/"+asked[1]+":"+asked[3])
		if err != nil {
			http.NotFound(w, r)
			return
		}
		digest = found
	}
	parts := digestForm.FindStringSubmatch(digest)
	if parts == nil {
		http.NotFound(w, r)
		return
	}
	blob, err := os.Open(filepath.Join(m.blobs, parts[1], parts[2]))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer blob.Close()
	w.Header().Set("Docker-Content-Digest", digest)
	if asked[2] == "blobs" {
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", time.Time{}, blob)
		return
	}
	m.serveManifest(w, blob)
}

// resolve looks a reference up among the imported images.
func (m mirror) resolve(ctx context.Context, reference string) (digest string, err error) {
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace)
	sum := sha256.Sum256([]byte(reference))
	note := filepath.Join(m.served, hex.EncodeToString(sum[:]))
	found, err := m.images.Get(ctx, &images.GetImageRequest{Name: reference})
	if status.Code(err) == codes.NotFound { // its replacement is not the imported image, whatever its digest
		if gone := os.Remove(note); !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return "", err
	}
	if err != nil {
		return "", err
	}
	digest = found.Image.Target.Digest
	// A digest other than the served one came from a registry.
	if was, err := os.ReadFile(note); err == nil && string(was) == digest {
		return digest, nil
	}
	if _, imported := found.Image.Labels[importedLabel]; !imported {
		return "", os.ErrNotExist
	}
	if err := layout.WriteFile(note, []byte(digest), 0o600); err != nil {
		log.Printf("image %s is served this once: %v", reference, err)
	}
	return digest, nil
}

// serveManifest sends a manifest with the media type stated in it.
func (m mirror) serveManifest(w http.ResponseWriter, blob io.Reader) {
	raw, err := io.ReadAll(blob)
	var kind struct{ MediaType string }
	if err == nil {
		err = json.Unmarshal(raw, &kind)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if kind.MediaType == "" {
		kind.MediaType = "application/vnd.oci.image.manifest.v1+json"
	}
	w.Header().Set("Content-Type", kind.MediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(raw)))
	w.Write(raw) //nolint:errcheck // the runtime has gone; it will ask again
}
