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

// failure is the answer to a call that failed: {"error": {"code", "message"}}.
type failure struct {
	Err    appplan.Error `json:"error" doc:"What went wrong"`
	status int
}

// Error returns the message.
func (f *failure) Error() string { return f.Err.Message }

// GetStatus returns the HTTP status.
func (f *failure) GetStatus() int { return f.status }

// statuses maps each code to its HTTP status.
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

// failed returns the answer to a call that ended with an error. The caller was authorized before,
// so if Kubernetes then forbids a request, the server itself lacks the right. Such an error is
// Internal.
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

// tooMany is an error that says when to try again.
type tooMany struct {
	what  string
	after time.Duration
}

// Error names what there were too many of.
func (e *tooMany) Error() string { return "that was too many " + e.what }

// Unwrap returns the error as one of a call.
func (e *tooMany) Unwrap() error { return appplan.Errorf(appplan.TooMany, "%s", e.Error()) }

// seconds returns the value of Retry-After: whole seconds, at least one.
func (e *tooMany) seconds() string {
	return strconv.Itoa(max(1, int(math.Ceil(e.after.Seconds()))))
}

// adoptErrors makes huma's own errors look like those of this API. huma has one such setting for a
// process.
var adoptErrors = sync.OnceFunc(func() {
	huma.NewError = func(status int, message string, errs ...error) huma.StatusError {
		for _, err := range errs {
			message += "; " + err.Error()
		}
		code := appplan.Internal
		switch status {
		case http.StatusBadRequest: // an empty body, or one that is wrong in another way
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

// write answers a failure outside of huma.
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
	_ = json.NewEncoder(w).Encode(f) // the log shows a caller that has disconnected
}
