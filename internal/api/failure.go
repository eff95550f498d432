package api

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	appplan "tarn.dev/tarn/internal/app/plan"
)

// failure is what a call that fails is answered: {"error": {"code", "message"}}.
type failure struct {
	Err    appplan.Error `json:"error" doc:"What went wrong"`
	status int
}

// Error gives the message.
func (f *failure) Error() string { return f.Err.Message }

// GetStatus gives the HTTP status.
func (f *failure) GetStatus() int { return f.status }

// statuses are the HTTP statuses of the codes.
var statuses = map[appplan.Code]int{
	appplan.Invalid:      http.StatusUnprocessableEntity,
	appplan.NotFound:     http.StatusNotFound,
	appplan.Conflict:     http.StatusConflict,
	appplan.Unauthorized: http.StatusUnauthorized,
	appplan.Forbidden:    http.StatusForbidden,
	appplan.TooMany:      http.StatusTooManyRequests,
	appplan.TooLarge:     http.StatusRequestEntityTooLarge,
	appplan.WrongType:    http.StatusUnsupportedMediaType,
	appplan.WrongMethod:  http.StatusMethodNotAllowed,
	appplan.Timeout:      http.StatusRequestTimeout,
	appplan.Internal:     http.StatusInternalServerError,
}

// failed is the answer to a call that ended with an error. The caller was let in, so
// what Kubernetes denies then it denies the server: that is the server's fault.
func failed(err error) error {
	if err == nil {
		return nil
	}
	var known *appplan.Error
	if !errors.As(err, &known) {
		known = &appplan.Error{Code: appplan.Internal, Message: err.Error()}
	}
	f := &failure{Err: *known}
	if f.Err.Code == appplan.Forbidden && f.Err.Cause != nil {
		f.Err.Code = appplan.Internal
	}
	f.status = statuses[f.Err.Code]
	var late *tooMany
	if errors.As(err, &late) {
		return huma.ErrorWithHeaders(f, http.Header{"Retry-After": {late.seconds()}})
	}
	return f
}

// tooMany is an error that says when to ask again.
type tooMany struct {
	what  string
	after time.Duration
}

// Error says what there was too much of.
func (e *tooMany) Error() string { return "that was too many " + e.what }

// Unwrap gives it as an error of a call.
func (e *tooMany) Unwrap() error { return appplan.Errorf(appplan.TooMany, "%s", e.Error()) }

// seconds is how long to wait, as Retry-After has it: whole seconds, at least one.
func (e *tooMany) seconds() string {
	return strconv.Itoa(max(1, int(math.Ceil(e.after.Seconds()))))
}

// adoptErrors makes the errors of huma's own look as ours. That is one for a process.
var adoptErrors = sync.OnceFunc(func() {
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		for _, err := range errs {
			message += "; " + err.Error()
		}
		code := appplan.Internal
		switch status {
		case http.StatusBadRequest: // an empty body; whatever else is wrong with one is answered so
			code = appplan.Invalid
		case http.StatusRequestEntityTooLarge:
			code, message = appplan.TooLarge, "the body is longer than this call accepts: see /docs"
		case http.StatusRequestTimeout:
			code, message = appplan.Timeout, "the body arrived too slowly: send it within ten seconds"
		default:
			for known, its := range statuses {
				if its == status {
					code = known
				}
			}
		}
		return &failure{Err: appplan.Error{Code: code, Message: strings.TrimSpace(message)}, status: statuses[code]}
	}
})

// write answers a failure where huma is not at work.
func write(w http.ResponseWriter, err error) {
	f := &failure{}
	var headers huma.HeadersError
	answer := failed(err)
	if errors.As(answer, &headers) {
		for name, values := range headers.GetHeaders() {
			w.Header()[name] = values
		}
	}
	if !errors.As(answer, &f) {
		f = &failure{status: http.StatusInternalServerError}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.status)
	_ = json.NewEncoder(w).Encode(f) // a caller that has left shows in the log
}
