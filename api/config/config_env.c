/* config_env.c - a configuration from the environment: TRIB_* (settings.c), else the launcher's (config_launcher.c). */
#include "api/config/config.h"
#include "api/config/settings.h"

trib_status trib_config_from_env(trib_config *config, trib_error *error)
{
    trib_error_clear(error);
    trib_status status =
        config == NULL ? trib_error_set(error, TRIB_INVALID, "config is NULL") : trib_config_check_size(config, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_config found = *config;
    if (trib_setting_get("TRIB_RANK") == NULL) {
        status = trib_config_take_launcher(&found, error);
    }
    if (status == TRIB_OK) {
        status = trib_settings_read(&found, error);
    }
    if (trib_setting_get("TRIB_LISTEN") == NULL && trib_setting_get("TRIB_INTERFACE") != NULL) {
        found.listen = trib_setting_get("TRIB_INTERFACE");
    }
    if (trib_setting_get("TRIB_COORDINATOR") != NULL) {
        found.coordinator_source = NULL;
    }
    if (status == TRIB_OK) {
        status =
            trib_config_take_token(&found, trib_setting_get("TRIB_TOKEN"), trib_setting_get("TRIB_TOKEN_FILE"), error);
    }
    if (status == TRIB_OK) {
        status = trib_config_check_local(error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    trib_config_take_device(&found, trib_setting_get("TRIB_DEVICE"));
    *config = found;
    trib_config_warn_of_unknown_names(config);
    return TRIB_OK;
}
