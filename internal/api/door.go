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
	// known is how long a token that was reviewed is not reviewed again; refused, how
	// long one that was refused is not.
	known   = 10 * time.Second
	refused = 2 * time.Second
	// trusted is how long a token that was good is reviewed whatever else comes from its
	// address: behind a proxy that is where everybody comes from.
	trusted = time.Hour
	// tokens is of how many that is remembered.
	tokens = 4096
	// longestToken is how long a token may be, in bytes.
	longestToken = 8 << 10
	// strangers may have this many tokens reviewed from one address, and make as many calls
	// without one, a second and at once.
	strangers, strangersBurst = 20, 500
)

// door lets callers in. It remembers tokens by their hash alone.
type door struct {
	client    client.Client
	namespace string
	audiences []string
	reviewed  *cache.LRUExpireCache
	regulars  *cache.LRUExpireCache
	callers   *pace
	addresses *limiter
	// tokenless bounds calls without a token, apart from reviews of tokens.
	tokenless *limiter
}

// caller is who calls.
type caller struct {
	user authenticationv1.UserInfo
	// home is the namespace of a service account, empty for others.
	home string
}

// group is whom a caller's calls are counted with: the service accounts of its namespace,
// or nobody else.
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

// bearer takes the token out of a header.
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

// who finds out whose a token is. address is where the call came from.
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

// meant says whether a token that is good for some audiences is for this server. One of
// which none are told was reviewed by an API server that knows of none: it is for that.
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

// neighbourhood is what of an address one stranger has: of version 6 not less than the
// first 64 bits.
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

// where is the namespace a call is about.
func (d *door) where(c *caller, asked string) string {
	switch {
	case asked != "":
		return asked
	case c.home != "":
		return c.home
	}
	return d.namespace
}

// may asks whether a caller may do something with an application, or with all of a
// namespace where id is empty. One that may not even see it hears that there is none.
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
