// Package pki makes the keys and certificates of a cluster, and the kubeconfigs that carry them.
// Keys are ECDSA P-256: they are fast to make, and every part of Kubernetes accepts them.
//
// It must not know where an identity is used, nor what it may do. RBAC and the caller decide that.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity is the lifetime of every certificate made here. A cluster that starts with less than
// renewBefore left gets new certificates.
const (
	validity    = 3 * 365 * 24 * time.Hour
	renewBefore = 180 * 24 * time.Hour
)

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

// Identity is what a certificate states about its owner.
type Identity struct {
	CommonName    string
	Organizations []string
	IPs           []net.IP
	Names         []string
	Server        bool // may serve; every identity may also be a client
}

// File is the authority's certificate.
func (a *Authority) File() string { return a.file }

// Certificate returns the authority's certificate, PEM encoded.
func (a *Authority) Certificate() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// OpenAuthority reads <dir>/<name>.crt and .key. It makes them if they are missing or about to
// expire.
func OpenAuthority(dir, name string, now time.Time) (*Authority, error) {
	base := filepath.Join(dir, name)
	cert, key, err := readPair(base)
	if err == nil && cert.NotAfter.After(now.Add(renewBefore)) {
		return &Authority{cert: cert, key: key, file: base + ".crt"}, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating the key of authority %s: %w", name, err)
	}
	template, err := newTemplate("tarn-cluster "+name, nil, now)
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing authority %s: %w", name, err)
	}
	if cert, err = x509.ParseCertificate(raw); err != nil {
		return nil, fmt.Errorf("reading back authority %s: %w", name, err)
	}
	return &Authority{cert: cert, key: key, file: base + ".crt"}, writePair(base, raw, key)
}

// Issue writes <dir>/<name>.crt and .key for the identity. It signs a new certificate each time,
// because addresses may have changed.
func (a *Authority) Issue(dir, name string, id Identity, now time.Time) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("creating the key of %s: %w", name, err)
	}
	template, err := newTemplate(id.CommonName, id.Organizations, now)
	if err != nil {
		return nil, nil, err
	}
	template.IPAddresses, template.DNSNames = id.IPs, id.Names
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if id.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("signing the certificate of %s: %w", name, err)
	}
	if err := writePair(filepath.Join(dir, name), raw, private); err != nil {
		return nil, nil, err
	}
	encoded, err := encodeKey(private)
	return encode("CERTIFICATE", raw), encoded, err
}

// ServiceAccountKey makes <dir>/service-account.key and .pub once. Tokens signed with it stay valid
// across restarts.
func ServiceAccountKey(dir string) error {
	base := filepath.Join(dir, "service-account")
	if _, err := os.Stat(base + ".key"); err == nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("creating the service account key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encoding the service account key: %w", err)
	}
	private, err := encodeKey(key)
	if err != nil {
		return err
	}
	if err := write(base+".pub", encode("PUBLIC KEY", public), 0o644); err != nil {
		return err
	}
	return write(base+".key", private, 0o600)
}

// newTemplate makes certificates valid from an hour ago, because clocks of virtual machines jump.
func newTemplate(commonName string, organizations []string, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("choosing a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName, Organization: organizations},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(validity),
		BasicConstraintsValid: true,
	}, nil
}

func readPair(base string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certFile, err := os.ReadFile(base + ".crt")
	if err != nil {
		return nil, nil, fmt.Errorf("reading an authority: %w", err)
	}
	keyFile, err := os.ReadFile(base + ".key")
	if err != nil {
		return nil, nil, fmt.Errorf("reading an authority: %w", err)
	}
	certBlock, _ := pem.Decode(certFile)
	keyBlock, _ := pem.Decode(keyFile)
	if certBlock == nil || keyBlock == nil {
		return nil, nil, fmt.Errorf("authority %s is not PEM encoded: remove %s.crt and %s.key to have it created again", base, base, base)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("authority %s.crt: %w", base, err)
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("authority %s.key: %w", base, err)
	}
	return cert, key, nil
}

// writePair writes the key first, because readPair takes a certificate as the sign that both exist.
func writePair(base string, cert []byte, key *ecdsa.PrivateKey) error {
	encoded, err := encodeKey(key)
	if err != nil {
		return err
	}
	if err := write(base+".key", encoded, 0o600); err != nil {
		return err
	}
	return write(base+".crt", encode("CERTIFICATE", cert), 0o644)
}

func write(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return fmt.Errorf("creating the directory of %s: %w", path, err)
	}
	if err := os.WriteFile(path, content, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return encode("EC PRIVATE KEY", raw), nil
}

func encode(kind string, raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})
}
