package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	tarnv1 "tarn.dev/tarn/api/v1alpha1"
	appplan "tarn.dev/tarn/internal/app/plan"
)

const (
	// known is how long an accepted token is not reviewed again; refused is the same for a rejected
	// token.
	known   = 10 * time.Second
	refused = 2 * time.Second
	// trusted is how long an accepted token is reviewed regardless of the limit for its address.
	// Behind a proxy, all callers share one address.
	trusted = time.Hour
	// tokens is how many tokens are remembered.
	tokens = 4096
	// longestToken is the longest token, in bytes.
	longestToken = 8 << 10
	// strangers is how many unknown tokens are reviewed per second from one address, and how many
	// calls without a token are answered. strangersBurst is how many may come at once.
	strangers, strangersBurst = 20, 500
)

// door identifies and authorizes callers. It remembers only the hashes of tokens.
type door struct {
	client    client.Client
	namespace string
	audiences []string
	reviewed  *cache.LRUExpireCache
	regulars  *cache.LRUExpireCache
	callers   *pace
	addresses *limiter
	// tokenless limits calls without a token, separately from reviews of tokens.
	tokenless *limiter
}

// caller is the user who calls.
type caller struct {
	user authenticationv1.UserInfo
	// home is the namespace of a service account, empty for other users.
	home string
}

// group returns the name under which a caller's calls are counted. All service accounts of a
// namespace are one group; any other user is a group of its own.
func (c *caller) group() string {
	if c.home != "" {
		return "namespace " + c.home
	}
	return "user " + c.user.Username
}

func newDoor(c client.Client, namespace string, audiences []string, limits Limits) *door {
	return &door{
		client: c, namespace: namespace, audiences: audiences, reviewed: cache.NewLRUExpireCache(tokens), regulars: cache.NewLRUExpireCache(tokens),
		callers: newPace(limits), addresses: newLimiter(strangers, strangersBurst),
		tokenless: newLimiter(strangers, strangersBurst),
	}
}

// bearer extracts the token from a header.
func bearer(header string) (string, error) {
	scheme, token, _ := strings.Cut(header, " ")
	token = strings.TrimSpace(token)
	switch {
	case header == "":
		return "", appplan.Errorf(appplan.Unauthorized, "send a Kubernetes token: Authorization: Bearer TOKEN")
	case !strings.EqualFold(scheme, "bearer") || token == "" || len(token) > longestToken || strings.ContainsAny(token, " \t"):
		return "", appplan.Errorf(appplan.Unauthorized, "the header Authorization has no token: write it as Bearer TOKEN")
	}
	return token, nil
}

// who identifies the caller by its token. address is the caller's address.
func (d *door) who(ctx context.Context, token, address string) (*caller, error) {
	key := sha256.Sum256([]byte(token))
	if found, ok := d.reviewed.Get(key); ok {
		if c, ok := found.(*caller); ok && c != nil {
			return c, nil
		}
		return nil, d.badToken()
	}
	if _, regular := d.regulars.Get(key); !regular {
		if err := d.addresses.take(neighbourhood(address)); err != nil {
			return nil, err
		}
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: d.audiences}}
	if err := d.client.Create(ctx, review); err != nil {
		return nil, fmt.Errorf("asking Kubernetes for the owner of the token: %w", err)
	}
	if !review.Status.Authenticated || !d.meant(review.Status.Audiences) {
		d.regulars.Remove(key)
		d.reviewed.Add(key, (*caller)(nil), refused)
		return nil, d.badToken()
	}
	c := &caller{user: review.Status.User}
	if rest, is := strings.CutPrefix(c.user.Username, "system:serviceaccount:"); is {
		c.home, _, _ = strings.Cut(rest, ":")
	}
	d.reviewed.Add(key, c, known)
	d.regulars.Add(key, true, trusted)
	return c, nil
}

// meant says whether a token for some audiences is meant for this server. Without audiences in the
// answer, the token is only meant for the API server itself.
func (d *door) meant(audiences []string) bool {
	return len(d.audiences) == 0 || slices.ContainsFunc(audiences, func(one string) bool { return slices.Contains(d.audiences, one) })
}

func (d *door) badToken() error {
	text := "the token is not valid or has expired: get a new one, for example with `kubectl create token ACCOUNT`"
	if len(d.audiences) > 0 {
		text += "; it must be for audience " + strings.Join(d.audiences, " or ") + " and for that of Kubernetes' API server"
	}
	return appplan.Errorf(appplan.Unauthorized, "%s", text)
}

// neighbourhood returns the part of an address that is counted as one stranger. For IPv6 it is the
// first 64 bits, because one host can use all addresses below them.
func neighbourhood(address string) string {
	host := hostOf(address)
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Unmap().Is4() {
		return host
	}
	return netip.PrefixFrom(ip.WithZone(""), 64).Masked().String()
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// where returns the namespace of a call.
func (d *door) where(c *caller, asked string) string {
	switch {
	case asked != "":
		return asked
	case c.home != "":
		return c.home
	}
	return d.namespace
}

// may returns an error unless the caller may use a verb on an application, or on all of a namespace
// if id is empty. For a caller who may not even see the application, the error is that it does not
// exist.
func (d *door) may(ctx context.Context, c *caller, verb, namespace, id string) error {
	allowed, err := d.allowed(ctx, c, verb, namespace, id)
	if err != nil || allowed {
		return err
	}
	if id == "" {
		return appplan.Errorf(appplan.Forbidden, "%s may not %s apps.tarn.dev in namespace '%s'", c.user.Username, verb, namespace)
	}
	seen := false
	if verb != "get" {
		if seen, err = d.allowed(ctx, c, "get", namespace, id); err != nil {
			return err
		}
	}
	if !seen {
		return appplan.AppNotFound(id)
	}
	return appplan.Errorf(appplan.Forbidden, "%s may not %s app '%s' in namespace '%s'", c.user.Username, verb, id, namespace)
}

func (d *door) allowed(ctx context.Context, c *caller, verb, namespace, id string) (bool, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range c.user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: c.user.Username, UID: c.user.UID, Groups: c.user.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: tarnv1.Group, Resource: "apps", Namespace: namespace, Verb: verb, Name: id,
		},
	}}
	if err := d.client.Create(ctx, review); err != nil {
		return false, fmt.Errorf("asking Kubernetes what the caller may do: %w", err)
	}
	return review.Status.Allowed && !review.Status.Denied, nil
}
