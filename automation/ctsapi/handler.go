// SPDX-License-Identifier: MPL-2.0

package ctsapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/resource"
)

const (
	// MaxBody bounds the body of a request, in bytes.
	MaxBody = 1 << 20
	// bodyTimeout bounds the receipt of a body.
	bodyTimeout = 30 * time.Second
)

// handler serves the API.
type handler struct{ tasks Tasks }

// New returns a handler of the API. names are the names of the daemon that the
// Host of a request without TLS may have, besides localhost.
func New(tasks Tasks, names []string) http.Handler {
	h := &handler{tasks}
	mux := http.NewServeMux()
	for path, methods := range map[string]methods{
		"/v1/health":              {"GET": h.health},
		"/v1/status":              {"GET": h.status},
		"/v1/status/cluster":      {"GET": h.cluster},
		"/v1/status/tasks":        {"GET": h.taskStatus},
		"/v1/status/tasks/{name}": {"GET": h.taskStatus},
		"/v1/status/tasks/":       {"GET": badPath},
		"/v1/tasks":               {"GET": h.list, "POST": h.create, "PATCH": badPath, "DELETE": badPath},
		"/v1/tasks/{name}":        {"GET": h.get, "PATCH": h.update, "DELETE": h.delete},
		"/v1/tasks/":              {"GET": badPath, "PATCH": badPath, "DELETE": badPath},
	} {
		mux.Handle(path, methods)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil && !netaddr.AllowedHost(r.Host, names) {
			writeError(w, &apiError{status: http.StatusForbidden, text: fmt.Sprintf(
				"host %.300q is not a name of this daemon: use an IP address or localhost", r.Host)})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// methods has the functions of one path, by method. A function returns the
// status and the JSON of the response.
type methods map[string]func(http.ResponseWriter, *http.Request) (int, any, error)

func (m methods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	serve := m[r.Method]
	if serve == nil {
		allowed := strings.Join(slices.Sorted(maps.Keys(m)), ", ")
		w.Header().Set("Allow", allowed)
		writeError(w, &apiError{status: http.StatusMethodNotAllowed, text: fmt.Sprintf(
			"method %q is not supported: %s has %s", r.Method, r.URL.Path, allowed)})
		return
	}
	status, body, err := serve(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, status, body)
}

// apiError is an error with a status.
type apiError struct {
	status int
	text   string
	// identified adds the id of the request to the response, as CTS does for
	// some errors.
	identified bool
}

func (e *apiError) Error() string { return e.text }

func badRequest(identified bool, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, fmt.Sprintf(format, args...), identified}
}

// failure returns the error of a request about the task of that name. t is the
// task in the request, or nil. err is not nil.
func failure(err error, name string, t *pb.Task) *apiError {
	field, isField := errors.AsType[*task.FieldError](err)
	switch {
	case isField:
		return badRequest(true, "%s: %s", fieldName(t, field.Field), field.Reason)
	case errors.Is(err, resource.ErrInvalid):
		return badRequest(true, "%v", err)
	case errors.Is(err, resource.ErrConflict):
		return badRequest(true, "the task %q exists already: delete it first, or choose another name", name)
	case errors.Is(err, resource.ErrNotFound):
		return &apiError{http.StatusNotFound, fmt.Sprintf("the task %q does not exist", name), true}
	}
	return &apiError{http.StatusInternalServerError, err.Error(), true}
}

// requestID is the id of a request in a response. It is not in the log.
func requestID() string { return uuid.NewString() }

func writeJSON(w http.ResponseWriter, status int, body any) {
	raw, err := json.Marshal(body)
	if err != nil { // the types of this package have a JSON form
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(raw, '\n')) // an error means that the client has disconnected
}

func writeError(w http.ResponseWriter, err error) {
	e, ok := errors.AsType[*apiError](err)
	if !ok {
		e = &apiError{status: http.StatusInternalServerError, text: err.Error()}
	}
	body := map[string]any{"error": map[string]string{"message": e.text}}
	if e.identified {
		body["request_id"] = requestID()
	}
	writeJSON(w, e.status, body)
}

func badPath(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	return 0, nil, badRequest(false, "the path %q must end with the name of one task", r.URL.Path)
}

func (h *handler) health(http.ResponseWriter, *http.Request) (int, any, error) {
	return http.StatusOK, struct{}{}, nil
}

// taskResponse is the response with a task.
type taskResponse struct {
	RequestID string    `json:"request_id"`
	Run       *Plan     `json:"run,omitempty"`
	Task      *taskJSON `json:"task"`
}

func (h *handler) list(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	all, err := h.tasks.List(r.Context())
	if err != nil {
		return 0, nil, failure(err, "", nil)
	}
	out := struct {
		RequestID string      `json:"request_id"`
		Tasks     []*taskJSON `json:"tasks"`
	}{requestID(), []*taskJSON{}}
	for _, t := range all {
		out.Tasks = append(out.Tasks, encode(t))
	}
	return http.StatusOK, out, nil
}

func (h *handler) get(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("name")
	t, err := h.tasks.Get(r.Context(), name)
	if err != nil {
		return 0, nil, failure(err, name, nil)
	}
	return http.StatusOK, taskResponse{RequestID: requestID(), Task: encode(t)}, nil
}

func (h *handler) create(w http.ResponseWriter, r *http.Request) (int, any, error) {
	run, err := runOf(r, true)
	if err != nil {
		return 0, nil, err
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return 0, nil, &apiError{http.StatusUnsupportedMediaType, "the header Content-Type must be application/json", true}
	}
	var request struct {
		Task *taskJSON `json:"task"`
	}
	if err := readBody(w, r, &request, true); err != nil {
		return 0, nil, err
	}
	if request.Task == nil {
		return 0, nil, badRequest(true, "task: the task is required")
	}
	t, err := request.Task.decode()
	if _, isField := errors.AsType[*task.FieldError](err); isField {
		return 0, nil, failure(err, t.Name, t.Task)
	}
	if err != nil {
		return 0, nil, badRequest(true, "%v", err)
	}
	plan, err := h.tasks.Create(r.Context(), t, run)
	if err != nil {
		return 0, nil, failure(err, t.Name, t.Task)
	}
	status := http.StatusCreated
	if run == Inspect {
		status = http.StatusOK
	}
	return status, taskResponse{requestID(), plan, encode(t)}, nil
}

func (h *handler) update(w http.ResponseWriter, r *http.Request) (int, any, error) {
	run, err := runOf(r, false)
	if err != nil {
		return 0, nil, err
	}
	var request struct {
		Enabled *bool `json:"enabled"`
	}
	if err := readBody(w, r, &request, false); err != nil {
		return 0, nil, err
	}
	if request.Enabled == nil {
		return 0, nil, badRequest(false, "enabled: the field is required; no other field can be changed")
	}
	name := r.PathValue("name")
	plan, err := h.tasks.SetEnabled(r.Context(), name, *request.Enabled, run)
	if err != nil {
		return 0, nil, failure(err, name, nil)
	}
	if run != Inspect {
		plan = nil
	}
	return http.StatusOK, struct {
		Inspect *Plan `json:"inspect,omitempty"`
	}{plan}, nil
}

func (h *handler) delete(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	name := r.PathValue("name")
	if err := h.tasks.Delete(r.Context(), name); err != nil {
		return 0, nil, failure(err, name, nil)
	}
	return http.StatusAccepted, map[string]string{"request_id": requestID()}, nil
}

// runOf returns the parameter run.
func runOf(r *http.Request, identified bool) (Run, error) {
	run := Run(r.URL.Query().Get("run"))
	if run != None && run != Inspect && run != Now {
		return None, badRequest(identified, "parameter run %.100q: must be now or inspect", string(run))
	}
	return run, nil
}

// readBody decodes the body, one JSON object without unknown fields.
func readBody(w http.ResponseWriter, r *http.Request, to any, identified bool) error {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // fails only without a connection, in tests
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	_ = rc.SetReadDeadline(time.Time{})
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &apiError{http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the body of the request has more than %d bytes", tooLarge.Limit), identified}
	}
	if err != nil {
		return badRequest(identified, "read the body of the request: %v", err)
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return badRequest(identified, "decode the body of the request: %v", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return badRequest(identified, "decode the body of the request: data after the object")
	}
	return nil
}
