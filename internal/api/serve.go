package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// Time limits for callers: to send a header, to send a whole request, to read an answer, and to
// stay connected without a request. Streams of events have limits of their own.
const (
	headerTime  = 5 * time.Second
	requestTime = 20 * time.Second
	answerTime  = 60 * time.Second
	idleTime    = 2 * time.Minute
	// longestHeader is in bytes; the token is the longest part of a header.
	longestHeader = 16 << 10
	// goodbye is how long current calls may take when the server stops.
	goodbye = 10 * time.Second
)

// Listening says where a server listens.
type Listening struct {
	// Address is host:port.
	Address string
	// CertFile and KeyFile are the certificate for TLS and its key. They are read again when they
	// change. Empty means plain HTTP.
	CertFile, KeyFile string
	// Insecure allows plain HTTP on addresses other than loopback, for example behind a proxy that
	// terminates TLS.
	Insecure bool
}

// Check returns what is wrong, and the flag that fixes it.
func (l Listening) Check() error {
	host, _, err := net.SplitHostPort(l.Address)
	if err != nil {
		return fmt.Errorf("--bind-address %q is no host:port: write it as 127.0.0.1:8084", l.Address)
	}
	switch ip := net.ParseIP(host); {
	case (l.CertFile == "") != (l.KeyFile == ""):
		return errors.New("--tls-cert-file and --tls-private-key-file go together: give both or none")
	case l.CertFile != "" || l.Insecure || host == "localhost" || ip != nil && ip.IsLoopback():
		return nil
	}
	return fmt.Errorf("--bind-address %q would send tokens unencrypted over the network: set --tls-cert-file and --tls-private-key-file, listen on 127.0.0.1, or set --insecure if a proxy terminates TLS", l.Address)
}

// Serve listens and answers until ctx ends; current calls may then finish.
func (s *Server) Serve(ctx context.Context, l Listening) error {
	listener, err := s.listen(ctx, l)
	if err != nil {
		return err
	}
	return s.ServeOn(ctx, listener)
}

func (s *Server) listen(ctx context.Context, l Listening) (net.Listener, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	var certificate *certwatcher.CertWatcher
	if l.CertFile != "" {
		var err error
		if certificate, err = certwatcher.New(l.CertFile, l.KeyFile); err != nil {
			return nil, fmt.Errorf("reading the certificate of the REST API: %w", err)
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.Address)
	if err != nil {
		return nil, fmt.Errorf("listening for calls of the REST API: %w", err)
	}
	if certificate == nil {
		return listener, nil
	}
	go func() {
		if err := certificate.Start(ctx); err != nil {
			s.log.Error(err, "the certificate cannot be watched; changes need a restart")
		}
	}()
	return tls.NewListener(listener, &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: certificate.GetCertificate, NextProtos: []string{"h2", "http/1.1"},
	}), nil
}

// Ready returns an error until the server answers.
func (s *Server) Ready(*http.Request) error {
	if !s.answers.Load() {
		return errors.New("the REST API does not listen")
	}
	return nil
}

// ServeOn answers on a listener until ctx ends, and closes it.
func (s *Server) ServeOn(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTime, ReadTimeout: requestTime, WriteTimeout: answerTime,
		IdleTimeout: idleTime, MaxHeaderBytes: longestHeader,
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	s.answers.Store(true)
	defer s.answers.Store(false)
	s.log.Info("the REST API is ready", "address", listener.Addr().String())
	select {
	case err := <-ended:
		s.stop()
		return fmt.Errorf("serving the REST API: %w", err)
	case <-ctx.Done():
	}
	s.stop()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		return errors.Join(fmt.Errorf("stopping the REST API: %w", err), server.Close())
	}
	return nil
}
