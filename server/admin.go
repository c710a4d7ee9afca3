package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/jmqio/jmq/server/listener"
)

// state is where a role is in its life.
type state string

const (
	stateStarting   state = "starting"
	stateRecovering state = "recovering"           // reading the journal after the last checkpoint
	stateMetadata   state = "waiting for metadata" // no registry answers, and there is no copy of what one said
	stateServing    state = "serving"
	stateStopping   state = "stopping"
	stateStopped    state = "stopped"
	stateFailed     state = "failed" // the journal took a failed write or sync, or a folder is gone
)

// Readiness is the body of /readyz: ready is true when every role serves.
type Readiness struct {
	Ready bool                 `json:"ready"`
	Roles map[string]RoleState `json:"roles"`
}

// RoleState is one role's part of it.
type RoleState struct {
	State string `json:"state"`
	// While recovering: journal bytes read and to be read.
	DoneBytes  int64  `json:"doneBytes,omitempty"`
	TotalBytes int64  `json:"totalBytes,omitempty"`
	Error      string `json:"error,omitempty"`
	// Refusing says what is refused while the rest is served, and why: sends, since a disk or broker.store.bytesMax is full; changes of
	// metadata, since the database is away.
	Refusing string `json:"refusing,omitempty"`
	// Replica is what the broker is in its broker group: master, slave, waiting, copying; Why says why, where there is something to say. Absent
	// where no registry rules it.
	Replica string `json:"replica,omitempty"`
	Why     string `json:"why,omitempty"`
}

// health is what the process says of itself. Safe for concurrent use.
type health struct {
	mu struct {
		sync.Mutex
		state       state
		done, total int64
	}
}

// set changes the state and returns the one before.
func (h *health) set(s state) state {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.mu.state
	h.mu.state = s
	return before
}

func (h *health) state() state {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.state
}

func (h *health) progress(done, total int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.done, h.mu.total = done, total
}

// readiness asks of each role what it refuses, "" while nothing, and why it failed, nil while it is well.
func (h *health) readiness(roles []Role, ask func(Role) (refusing string, failed error)) Readiness {
	h.mu.Lock()
	now := h.mu.state
	role := RoleState{State: string(now)}
	if now == stateRecovering {
		role.DoneBytes, role.TotalBytes = h.mu.done, h.mu.total
	}
	h.mu.Unlock()
	all := Readiness{Ready: now == stateServing, Roles: map[string]RoleState{}}
	for _, r := range roles {
		one := role
		if now == stateServing {
			refusing, failed := ask(r)
			if one.Refusing = refusing; failed != nil {
				one.State, one.Error, all.Ready = string(stateFailed), failed.Error(), false
			}
		}
		all.Roles[string(r)] = one
	}
	return all
}

// admin is the HTTP port for operators:
//
//	/healthz       200 while the process answers
//	/readyz        200 when every role serves, else 503; how far a recovery is
//	/metrics       Prometheus
//	/debug/pprof/  to callers on this machine only
//
// Callers on this machine are asked nothing, but that they name it by an address or a name without dots: a page of elsewhere that a browser here
// shows could use any other name. Others must show a client certificate of somebody who may see everything, unless
// node.auth.insecureWithoutAuthentication: without both the port is not opened beyond loopback.
//
// Its goroutine is started by serveAdmin and ends with stop.
type admin struct {
	server *http.Server
	done   chan struct{}
}

func (s *Server) serveAdmin(l net.Listener, registry *prometheus.Registry, certificates *listener.Certificates) *admin {
	log := s.log
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := s.readiness()
		code := http.StatusOK
		if !r.Ready {
			code = http.StatusServiceUnavailable
		}
		writeJSON(w, code, r)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	mux.Handle("GET /debug/pprof/", fromLoopback(pprof.Index))
	mux.Handle("GET /debug/pprof/cmdline", fromLoopback(pprof.Cmdline))
	mux.Handle("GET /debug/pprof/profile", fromLoopback(pprof.Profile))
	mux.Handle("GET /debug/pprof/symbol", fromLoopback(pprof.Symbol))
	mux.Handle("GET /debug/pprof/trace", fromLoopback(pprof.Trace))
	a := &admin{
		server: &http.Server{
			Handler: s.knownCaller(mux), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
			ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
		done: make(chan struct{}),
	}
	if s.config.Node.Admin.TLS {
		l = tls.NewListener(l, &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				c := certificates.Config().Clone()
				c.NextProtos = []string{"http/1.1"}
				return c, nil
			},
		})
	}
	go func() {
		defer close(a.done)
		if err := a.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("admin port stopped", "err", err)
		}
	}()
	return a
}

// stop lets requests under way end, for a second, then closes everything and waits.
func (a *admin) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := a.server.Shutdown(ctx); err != nil {
		_ = a.server.Close() // its error is that of connections that are gone anyway
	}
	<-a.done
}

// knownCaller serves callers on this machine, and those that show who they are.
func (s *Server) knownCaller(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if onLoopback(r) && !localName(r.Host) {
			http.Error(w, "callers on this machine name it by its address or by localhost", http.StatusForbidden)
			return
		}
		if !s.config.Node.Auth.InsecureWithoutAuthentication && !onLoopback(r) {
			if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
				http.Error(w, "callers from other machines show a client certificate", http.StatusUnauthorized)
				return
			}
			if err := (identity{s}).maySee(r.TLS.PeerCertificates[0]); err != nil {
				http.Error(w, err.Error(), http.StatusForbidden)
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// fromLoopback serves callers on this machine only, whatever address the port listens on.
func fromLoopback(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !onLoopback(r) {
			http.Error(w, "pprof is served to callers on this machine only", http.StatusForbidden)
			return
		}
		h(w, r)
	})
}

// onLoopback says whether a request comes from this machine.
func onLoopback(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// localName says whether a request names its host in a way that no page of elsewhere can bring a browser on this machine to use, by having
// a name of its own resolve to it: by an address, or by a name without dots.
func localName(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	return net.ParseIP(name) != nil || !strings.Contains(name, ".")
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the caller went away
}
